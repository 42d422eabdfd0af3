"""Tasks for those who launch images: consume, catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, named_by
from kiln.cli.options import Place, RecordSettings
from kiln.cli.output import log, output, table
from kiln.cli.task import flag, task

if TYPE_CHECKING:
    from kiln.catalogue.model import Catalogue
    from kiln.cloud.target import Target

# Records of each row that are fetched from the bucket, if there is one.
_RECORDS = 10


@task("Launch")
def consume(
    line: str = "",
    for_: str = "",
    channel: str = "stable",
    instance_type: str | None = None,
    label: str | None = None,
    strategy: str = "mixed",
    owner: str = "ami",
    jobs: str | None = None,
    walkthrough: bool = False,
    pin: bool = False,
    instance_profile: str | None = None,
    placement_group: str | None = None,
    capacity_reservation: str | None = None,
    capacity_block: str | None = None,
    out: str | None = None,
    list_: bool = False,
    *,
    place: Place,
) -> None:
    """Generate launch configuration for a channel's image.

    ./invoke consume --list
    ./invoke consume --line al2023/lts/eks/x86_64 --for karpenter --out nodes.yaml

    line: what consumers follow: --line al2023/lts/eks/x86_64 (./invoke channels)
    for_: the kind of document: --for karpenter (--list names them)
    channel: a channel of the line's `publish`: --channel stable
    instance_type: instead of the one that verifies the row: --instance-type p5.48xlarge; with --for
      parallelcluster several, a queue each: --instance-type p5.48xlarge,g5.xlarge
    label: a MIG layout: --label all-1g.5gb
    owner: with --for gpu-operator, who makes slices: ami or operator: --owner operator
    jobs: with --for argo: --jobs 56 (default: one for each slice of a node)
    walkthrough: with --for argo: a script from no cluster to the last job, and back
    strategy: how Kubernetes shows slices, single or mixed: --strategy mixed
    pin: write the AMI id that the channel holds now, instead of following the channel
    instance_profile: what instances have: --instance-profile gpu-telemetry
    placement_group: where they start: --placement-group training
    capacity_reservation: --capacity-reservation cr-0123456789abcdef0
    capacity_block: a reservation that is a block: --capacity-block cr-0123456789abcdef0
    out: a file instead of standard output: --out nodes.yaml
    list_: name the kinds and write nothing
    """
    from kiln.consume import KINDS, kind_named, launch_request, pinned
    from kiln.matrix import load

    if list_:
        names = {kind.name: kind.summary for kind in KINDS.values()}
        output(names, table((), list(names.items())))
        return
    if not (line and for_):
        raise KilnError("specify --line and --for", hint="./invoke consume --list names the kinds")
    kind = kind_named(for_)
    settings: dict[str, Any] = {
        "instance_profile": instance_profile,
        "placement_group": placement_group,
        "capacity_reservation": capacity_reservation,
        "capacity_block": capacity_block,
        "jobs": jobs,
    }
    flags = {flag(name): value for name, value in settings.items()}
    kind.require_flags({**flags, "--owner": owner != "ami", "--walkthrough": walkthrough})
    request = launch_request(
        line,
        channel,
        place.region or load.default_region() or "us-east-1",
        instance_types=instance_type,
        label=label,
        strategy=strategy,
        owner=owner,
        **settings,
    )
    kind.require_request(request)
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
def catalogue(
    out: str | None = None,
    publish: str | None = None,
    regions: str | None = None,
    *,
    place: Place,
    records: RecordSettings,
) -> None:
    """Write a web site of the images and what is on them.

    ./invoke catalogue --out site

    out: folder of the site: --out site (default: build/catalogue)
    publish: copy it to S3: --publish s3://my-bucket/catalogue
    regions: instead of all regions of the matrix: --regions eu-west-1,us-west-2
    """
    from kiln.base import vocabulary
    from kiln.base.paths import build_dir
    from kiln.catalogue.site import publish_site
    from kiln.publish.lines import regions_to_show

    if publish:
        vocabulary.S3_PLACE.required(publish, "--publish")
    shown = regions_to_show(regions)
    target = place.choose_running()
    folder = Path(out) if out else build_dir() / "catalogue"
    made = _make_catalogue(target, shown, records, folder)
    if publish:
        publish_site(folder, publish, target, log)
    counts = {
        "folder": str(folder),
        "lines": len(made.lines),
        "published": sum(bool(line.channels) for line in made.lines),
        "images": sum(len(line.images) for line in made.lines),
    }
    text = "{lines} lines, {published} published, {images} images".format(**counts)
    output(counts, f"{folder / 'index.html'}: {text}")


def _make_catalogue(
    target: Target, regions: Sequence[str], records: RecordSettings, folder: Path
) -> Catalogue:
    """Gather what the target's channels hold and write the site to `folder`."""
    from kiln.catalogue.gather import gather_catalogue
    from kiln.catalogue.site import site_files, write_site
    from kiln.matrix import load
    from kiln.publish.lines import line_settings

    recipes = load.load_recipes()
    if shelf := records.shelf(target):
        shelf.fetch_newest([recipe.name for recipe in recipes], log, each=_RECORDS)
    gathered = gather_catalogue(target, recipes, line_settings(), regions, log)
    write_site(site_files(gathered, log), folder)
    return gathered.catalogue


def publish_catalogue(
    url: str, target: Target, records: RecordSettings, regions: Sequence[str]
) -> None:
    """Make the catalogue and copy it to S3."""
    from kiln.base.paths import build_dir
    from kiln.catalogue.site import publish_site

    folder = build_dir() / "catalogue"
    _make_catalogue(target, regions, records, folder)
    publish_site(folder, url, target, log)
