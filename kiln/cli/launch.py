"""Tasks for those who launch images: consume, catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError, named_by
from kiln.cli.options import Place, RecordSettings
from kiln.cli.output import log, output, table
from kiln.cli.task import Flags, flag, task

if TYPE_CHECKING:
    from kiln.catalog.model import Catalog
    from kiln.cloud.target import Target


@dataclass(frozen=True)
class Launch(Flags):
    """Launch options

    instance_profile: instance profile name: --instance-profile gpu-telemetry
    placement_group: placement group name: --placement-group training
    capacity_reservation: --capacity-reservation cr-0123456789abcdef0
    capacity_block: capacity block: --capacity-block cr-0123456789abcdef0
    jobs: with --for argo: --jobs 56 (default: one for each slice of a node)
    """

    instance_profile: str | None = None
    placement_group: str | None = None
    capacity_reservation: str | None = None
    capacity_block: str | None = None
    jobs: str | None = None


@task("Launch")
def consume(
    line: str = "",
    for_: str = "",
    channel: str = "stable",
    instance_type: str | None = None,
    label: str | None = None,
    strategy: str = "mixed",
    owner: str = "ami",
    walkthrough: bool = False,
    pin: bool = False,
    out: str | None = None,
    list_: bool = False,
    *,
    launch: Launch,
    place: Place,
) -> None:
    """Generate launch configuration for a channel's image.

    ./invoke consume --list
    ./invoke consume --line al2023/lts/eks/x86_64 --for karpenter --out nodes.yaml

    line: line: --line al2023/lts/eks/x86_64 (./invoke channels)
    for_: the format: --for karpenter (--list shows all)
    channel: a channel of the line's `publish`: --channel stable
    instance_type: instance type (default: the row's verify_instance_type); with --for
      parallelcluster several, a queue each: --instance-type p5.48xlarge,g5.xlarge
    label: a MIG layout: --label all-1g.5gb
    owner: with --for gpu-operator, who makes slices: ami or operator: --owner operator
    walkthrough: with --for argo: a script from no cluster to the last job, and back
    strategy: how Kubernetes shows slices, single or mixed: --strategy mixed
    pin: write the AMI id that the channel holds now, instead of following the channel
    out: a file instead of standard output: --out nodes.yaml
    list_: list the formats and write nothing
    """
    from kiln.consume import KINDS, kind_named, launch_request, pinned
    from kiln.matrix import load

    if list_:
        names = {kind.name: kind.summary for kind in KINDS.values()}
        output(names, table((), list(names.items())))
        return
    if not (line and for_):
        raise KilnError(
            "specify --line and --for", hint="./invoke consume --list shows the formats"
        )
    kind = kind_named(for_)
    given = {flag(name): value for name, value in vars(launch).items()}
    kind.require_flags({**given, "--owner": owner != "ami", "--walkthrough": walkthrough})
    region = place.region or load.default_region() or "us-east-1"
    shown: dict[str, Any] = {"label": label, "strategy": strategy, "owner": owner}
    request = launch_request(
        line, channel, region, instance_types=instance_type, **shown, **vars(launch)
    )
    if pin or kind.needs_id:
        request = pinned(place.choose_running(), request)
    text = kind.document(request, template="argo-walkthrough.sh" if walkthrough else "")
    answer = {"line": line, "channel": channel, "kind": kind.name, "file": out, "document": text}
    write(out, text, answer)


def write(out: str | None, text: str, answer: object) -> None:
    """Write a document to the file that --out names, or print it; --json prints `answer`."""
    if out is None:
        output(answer, text.removesuffix("\n"))
        return
    with named_by("--out"):
        Path(out).write_text(text, encoding="utf-8")
    log(f"wrote {out}")
    output(answer)


@task("Launch")
def catalog(
    out: str | None = None,
    publish: str | None = None,
    regions: str | None = None,
    *,
    place: Place,
    records: RecordSettings,
) -> None:
    """Write a website of released images and their contents.

    ./invoke catalog --out site

    out: folder of the site: --out site (default: build/catalog)
    publish: copy it to S3: --publish s3://my-bucket/catalog
    regions: instead of all regions of the matrix: --regions eu-west-1,us-west-2
    """
    from kiln.base.paths import build_dir
    from kiln.publish.lines import regions_to_show

    vocabulary.S3_PLACE.optional(publish, "--publish")
    shown = regions_to_show(regions)
    folder = Path(out) if out else build_dir() / "catalog"
    made = make_catalog(place.choose_running(), shown, records, folder, publish)
    counts = {
        "folder": str(folder),
        "lines": len(made.lines),
        "published": sum(bool(line.channels) for line in made.lines),
        "images": sum(len(line.images) for line in made.lines),
    }
    text = "{lines} lines, {published} published, {images} images".format(**counts)
    output(counts, f"{folder / 'index.html'}: {text}")


def make_catalog(
    target: Target, regions: Sequence[str], records: RecordSettings, folder: Path, url: str | None
) -> Catalog:
    """Gather what the target's channels hold, write the site to `folder` and copy it to S3."""
    from kiln.catalog.gather import gather_catalog
    from kiln.catalog.site import publish_site, site_files, write_site
    from kiln.matrix import load
    from kiln.publish.lines import line_settings

    recipes = load.load_recipes()
    if bucket := records.open_bucket(target):
        bucket.fetch_newest([recipe.name for recipe in recipes], log, each=10)
    gathered = gather_catalog(target, recipes, line_settings(), regions, log)
    write_site(site_files(gathered, log), folder)
    if url:
        publish_site(folder, url, target, log)
    return gathered.catalog
