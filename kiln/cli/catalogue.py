"""The task that makes the catalogue: a static site for those who launch images."""

from __future__ import annotations

from pathlib import Path

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import JSON, PLACE, RECORDS, account_help, replaces_settings
from kiln.cli.front import note, show, task

_PORTS = 65535


@task(
    name="catalogue",
    help={
        "out": "folder of the site: --out site (default: build/catalogue)",
        "serve": "show it on this machine until Ctrl-C",
        "port": "with --serve: --port 8000",
        "publish": "copy it to S3: --publish s3://my-bucket/catalogue",
        "regions": "instead of all regions of the matrix: --regions eu-west-1,us-west-2",
        **PLACE,
        **account_help(RECORDS),
        **JSON,
    },
)
@replaces_settings(RECORDS)
def catalogue_(
    c: Context,
    aws_flags: dict[str, str],
    out: str | None = None,
    serve: bool = False,
    port: int = 8000,
    publish: str | None = None,
    regions: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """Which image to take, what is on it, what changed, is it safe: as a static web site."""
    from kiln.base.paths import build_dir
    from kiln.catalogue import site
    from kiln.cli import targets
    from kiln.cli.catalogue_site import make_catalogue
    from kiln.publish.lines import regions_to_show
    from kiln.publish.regions import answering

    if not 0 <= port <= _PORTS:
        raise KilnError(f"--port {port} is not a port", hint="--port 8000")
    if publish:
        site.bucket_and_prefix(publish)
    shown = regions_to_show(regions)
    place = answering(targets.choose(target, region))
    folder = Path(out) if out else build_dir() / "catalogue"
    made = make_catalogue(place, shown, aws_flags, folder)
    if publish:
        site.publish_site(folder, publish, place, note)
    counts = {
        "folder": str(folder),
        "lines": len(made.lines),
        "published": sum(bool(line.channels) for line in made.lines),
        "images": sum(len(line.images) for line in made.lines),
    }
    show(
        counts,
        as_json=json,
        text=lambda data: (
            f"{folder / 'index.html'}: {data['lines']} lines, {data['published']} published, "
            f"{data['images']} images"
        ),
    )
    if serve:
        site.serve_site(folder, port, note)
