"""`publish`: a verified AMI is copied to its regions, then the first channel moves to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import RECIPE, RECIPE_DIGEST, VERIFIED, says_verified
from kiln.base.vocabulary import as_time
from kiln.cloud.images import Image, find_image, own_images, require_image
from kiln.cloud.target import Target
from kiln.image.version_info import read_version_info
from kiln.pipeline.record import Record
from kiln.pipeline.records import RecordsBucket, all_of
from kiln.publish import copies, promote
from kiln.publish.channels import Installed, Release
from kiln.publish.lines import Line
from kiln.publish.provenance import attest
from kiln.publish.regions import Say, answering, in_regions

# How often what was set is read back: EC2 may show it late.
# https://github.com/hashicorp/terraform-provider-aws/pull/34691
_READS = 5


def publish_row(
    line: Line,
    target: Target,
    *,
    ami_id: str | None = None,
    why: str = "",
    say: Say,
    smoke: Callable[[Target, str], None] | None = None,
    bucket: RecordsBucket | None = None,
) -> promote.Moves:
    """Publish a row's verified AMI to its first channel, in the target's region and in those of the
    line's settings.

    `smoke` boots an image of a region and raises if its checks fail; `bucket` is where machines
    share their records. A second run continues where the first one ended; no channel has moved
    after an error unless the message says so.
    """
    settings = line.settings
    first = settings.channels[0]
    target = answering(target)
    source, record = _verified_ami(line, ami_id, target, bucket, say)
    regions = list(dict.fromkeys([target.region, *settings.regions]))
    copies.require_shareable(target, source, regions, settings)
    before = promote.held_in(target, regions, line.name, first)
    former = before.get(target.region)
    images = copies.copy_everywhere(source, line.name, regions, settings, target, say)
    present = former.release if former else None
    in_regions(
        target,
        {**images, **(present.images if present else {})},
        lambda there: copies.take_back(there, line.name, settings.share, say),
    )
    _prepare(source, line, images, target, say)
    if smoke:
        for region, image_id in images.items():
            say(f"boots {image_id} in {region}")
            smoke(target.in_region(region), image_id)
    if settings.sign:
        attest(target, record, images, settings.sign, line.tags)
    release = Release(
        line=line.name,
        channel=first,
        recipe=record.recipe.name,
        ami_name=source.name,
        images=images,
        verdict=source.tags[VERIFIED],
        run_id=record.run_id,
        recipe_digest=str(record.recipe_digest),
        git_commit=record.git_commit,
        built=as_time(source.created),
        moved=promote.moved_now(target, "publish", why),
        installed=_installed(record.versions or {}),
    )
    promote.skipped_regions(former, release, say)
    steps = promote.move_everywhere(target, release, before, line, say)
    changed = promote.grave(present, release) if present else ()
    return promote.Moves(release, tuple(steps), changed=tuple(changed))


def _verified_ami(
    line: Line, ami_id: str | None, target: Target, bucket: RecordsBucket | None, say: Say
) -> tuple[Image, Record]:
    """Return the AMI with that id, or the row's newest verified one of this target and region, and
    the record that says so. Record, tags and digest must agree."""
    row = line.recipe.name
    kept = bucket.fetch_row(row, say) if bucket else set()
    if bucket and ami_id and all(run.ami_id != ami_id for run in all_of(row)):
        bucket.fetch_named(ami_id, say)  # not among the row's newest
    record = _newest_record(row, target, ami_id)
    if record is None or record.ami_id is None:
        how = f"verify --ami {ami_id}" if ami_id else f"build --name {row}"
        raise operation_failed(
            f"{target.where}: no verified AMI {ami_id or f'for {row}'}",
            hint=f"./invoke {how} makes one and its record",
        )
    if record.status != "verified":
        raise _not_verified(record.ami_id, f"run {record.run_id} ended as {record.status}")
    image = require_image(target, record.ami_id)
    verdict = image.tags.get(VERIFIED, "missing")
    if not says_verified(verdict):
        raise _not_verified(image.ami_id, f"its tag {VERIFIED} is {verdict}")
    for key, expected in ((RECIPE, row), (RECIPE_DIGEST, record.recipe_digest)):
        if image.tags.get(key) != expected:
            says = image.tags.get(key, "missing")
            raise _not_verified(image.ami_id, f"its tag {key} is {says}; its record: {expected}")
    if bucket and record.run_id not in kept:
        bucket.keep(record)
    return image, record


def _newest_record(row: str, target: Target, ami_id: str | None) -> Record | None:
    """Return the last run that judged the wanted AMI; without an id the last of the newest verified
    AMI that is there, or, if none is, the newest run."""
    last: dict[str, Record] = {}
    for record in all_of(row):
        here = (record.target, record.region) == (target.kind, target.region)
        if here and record.ami_id and not record.is_inconclusive:
            last.setdefault(record.ami_id, record)
    if ami_id:
        return last.get(ami_id)
    verified = [record for record in last.values() if record.status == "verified"]
    # The newest verification may be that of an old AMI.
    created = {image.ami_id: image.created for image in own_images(target)}
    if there := [record for record in verified if record.ami_id in created]:
        return max(there, key=lambda record: created[str(record.ami_id)])
    return next(iter([*verified, *last.values()]), None)


def _not_verified(ami_id: str, why: str) -> KilnError:
    return operation_failed(
        f"{ami_id} is not verified, so it is not published: {why}",
        hint=f"./invoke verify --ami {ami_id} checks it",
    )


def _prepare(
    source: Image, line: Line, images: Mapping[str, str], target: Target, say: Say
) -> None:
    """Prepare the image of each region, and read back that consumers may have it."""
    tags = copies.wanted_tags(source, line.name)

    def prepare(there: Target) -> list[str]:
        ami_id = images[there.region]
        image = find_image(there, ami_id)
        if image is None:
            return [f"{ami_id} is not there any more"]
        copies.prepare_image(there, image, tags, line.settings, say)
        for _ in range(_READS):
            lacking = copies.not_ready(there, ami_id, tags, line.settings)
            if not lacking:
                break
            time.sleep(target.poll_seconds)
        return lacking

    lacking = in_regions(target, images, prepare)
    wrong = [f"{region}: {reason}" for region, reasons in lacking.items() for reason in reasons]
    if wrong:
        raise operation_failed(
            f"{source.ami_id} is not ready for consumers, so no channel moved:\n  "
            + "\n  ".join(wrong)
        )


def _installed(versions: dict[str, Any]) -> Installed:
    """Return the versions in an image's version-info; none for a record that has none."""
    if not versions:
        return Installed()
    info = read_version_info(versions, "the version-info of the AMI's record")
    found = {name: part.version for name, part in info.components.items()}
    packages = {package.name: package.full_version for package in info.packages}
    return Installed(
        driver=found.get("nvidia-driver"),
        kernel=info.kernel.boots or None,
        cuda=found.get("cuda"),
        nccl=found.get("nccl"),
        efa=found.get("efa"),
        # Amazon Linux's name and Debian's.
        glibc=packages.get("glibc") or packages.get("libc6"),
    )
