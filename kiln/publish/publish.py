"""`publish`: a verified AMI is copied to its regions, then the first channel moves to it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.recipe import Recipe
from kiln.base.tags import VERIFIED
from kiln.base.times import as_time
from kiln.cloud.images import Image, find_image
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.pipeline.record import Record
from kiln.pipeline.records import RecordsBucket, all_of
from kiln.publish import channel_move, copies
from kiln.publish.attestation import attest
from kiln.publish.channel_move import Move, move_everywhere
from kiln.publish.line_flags import answering
from kiln.publish.regions import in_regions
from kiln.publish.release import Release, on_image
from kiln.publish.verified_ami import verified_ami

# Seconds. EC2 documents no limit for a copy; Packer waits as long for an image.
_COPY_TIMEOUT = 4 * 3600
# How often EC2 is asked for a copy that it does not show yet, though it has just named its id; then
# the copy is gone: https://github.com/Answers4AWS/distami/issues/5
_UNSEEN = 10
# How often what was set is read back: EC2 may show it late.
# https://github.com/hashicorp/terraform-provider-aws/pull/34691
_READS = 5


@dataclass(frozen=True)
class Publication:
    """The release that a channel holds now, and what was done for it in each region."""

    release: Release
    steps: tuple[Move, ...]


def publish_row(
    recipe: Recipe,
    settings: Publish,
    target: Target,
    *,
    ami_id: str | None,
    channel: str,
    why: str,
    say: Callable[[str], None],
    smoke: Callable[[Target, str], None] | None = None,
    shelf: RecordsBucket | None = None,
) -> Publication:
    """Publish a row's verified AMI to its first channel, in the target's region and in those of
    `settings`. `smoke` boots an image of a region and raises if its checks fail; `shelf` is where
    machines share their records.

    What is there already is not done again, so a second run continues where the first one ended.
    Raises KilnError: exit status 2 for another channel than the first, 1 if an operation failed;
    no channel has moved then unless the message reports it.
    """
    _require_first(channel, settings)
    target = answering(target)
    line = recipe.channel_line
    kept = shelf.fetch_row(recipe.name, say) if shelf else set()
    if shelf and ami_id and all(run.ami_id != ami_id for run in all_of(recipe.name)):
        shelf.fetch_named(ami_id, say)  # not among the row's newest
    source, record = verified_ami(recipe, ami_id, target)
    if shelf and record.run_id not in kept:
        shelf.keep(record)
    regions = [target.region, *(r for r in settings.regions if r != target.region)]
    copies.require_shareable(target, source, regions, settings)
    before = channel_move.held_in(target, regions, line, channel)
    channel_move.say_left_out(before.get(target.region), source.name, regions, say)
    images = _copied(source, line, regions, settings, target, say)
    former = before.get(target.region)
    has = former.release.images if former and former.release else {}
    in_regions(
        list({**images, **has}),
        lambda region: copies.take_back(target.in_region(region), line, settings.share, say),
    )
    _settled(source, line, images, settings, target, say)
    if smoke:
        for region, image_id in images.items():
            say(f"boots {image_id} in {region}")
            smoke(target.in_region(region), image_id)
    if settings.sign:
        folder = Path(record.folder) if record.folder else None
        attest(target, record, images, settings.sign, folder)
    release = _release(source, record, line, channel, images, target, why)
    steps = move_everywhere(target, release, before, settings.launch_templates, say)
    return Publication(release, tuple(steps))


def _require_first(channel: str, settings: Publish) -> None:
    first = settings.channels[0]
    if channel not in settings.channels:
        hint = did_you_mean(channel, settings.channels)
        raise KilnError(f"there is no channel {channel!r}: {hint}")
    if channel != first:
        raise KilnError(
            f"an AMI is published to {first}, the first channel, and promoted to {channel}",
            hint=f"--channel {first}, then ./invoke promote --to {channel}",
        )


def _copied(
    source: Image,
    line: str,
    regions: Sequence[str],
    settings: Publish,
    target: Target,
    say: Callable[[str], None],
) -> dict[str, str]:
    """The image's id in each region; returns when every copy is available."""
    home = target.region

    def start(region: str, *, gone: bool = False) -> str:
        if region == home:
            return source.ami_id
        there = target.in_region(region)
        return copies.start_copy(there, source, line, settings, gone=gone)

    images = in_regions(regions, start)
    waiting = {region: ami_id for region, ami_id in images.items() if region != home}
    unseen = Counter[str]()
    started = time.monotonic()
    reported = started
    while True:
        for region, ami_id in list(waiting.items()):
            image = find_image(target.in_region(region), ami_id)
            if image is None and unseen[region] < 2 * _UNSEEN:
                unseen[region] += 1
                if unseen[region] == _UNSEEN:
                    say(f"{region}: the copy {ami_id} is gone: makes another one")
                    waiting[region] = images[region] = start(region, gone=True)
                continue
            if image is not None and image.state == "available":
                say(f"{region}: {ami_id} is available")
                del waiting[region]
            elif image is None or image.state != "pending":
                raise copies.failed_copy(target.in_region(region), ami_id, image)
        if not waiting:
            break
        now = time.monotonic()
        if now - started > _COPY_TIMEOUT:
            raise operation_failed(
                f"not copied after {_COPY_TIMEOUT // 3600} hours: {', '.join(waiting)}",
                hint="run publish again: it waits for the same copies",
            )
        if now - reported >= 30:
            reported = now
            say(f"waits for the copies in {', '.join(waiting)}, {now - started:.0f} s so far")
        time.sleep(target.wait_seconds)
    return images


def _settled(
    source: Image,
    line: str,
    images: dict[str, str],
    settings: Publish,
    target: Target,
    say: Callable[[str], None],
) -> None:
    """Prepare the image of each region and read it back.

    Raises KilnError (exit status 1) if one of them is not as consumers may have it.
    """
    tags = copies.wanted_tags(source, line)

    def prepare(region: str) -> list[str]:
        there = target.in_region(region)
        image = find_image(there, images[region])
        if image is None:
            return [f"{images[region]} is not there any more"]
        copies.prepare_image(there, image, source, line, settings, say)
        for _ in range(_READS):
            lacking = copies.not_ready(there, images[region], tags, settings)
            if not lacking:
                break
            time.sleep(target.poll_seconds)
        return lacking

    lacking = in_regions(list(images), prepare)
    wrong = [f"{region}: {reason}" for region, reasons in lacking.items() for reason in reasons]
    if wrong:
        raise operation_failed(
            f"{source.ami_id} is not ready for consumers, so no channel moved:\n  "
            + "\n  ".join(wrong),
            hint="an image that lacks encryption must be built with --kms-key-id"
            if any("encrypted" in reason for reason in wrong)
            else "",
        )


def _release(
    source: Image,
    record: Record,
    line: str,
    channel: str,
    images: dict[str, str],
    target: Target,
    why: str,
) -> Release:
    return Release(
        line=line,
        channel=channel,
        recipe=str(record.recipe["name"]),
        ami_name=source.name,
        images=images,
        verdict=source.tags[VERIFIED],
        run_id=record.run_id,
        recipe_digest=str(record.recipe_digest),
        git_commit=record.git_commit,
        built=as_time(source.created),
        moved=channel_move.moved_now(target, "publish", why),
        installed=on_image(record.versions or {}),
    )
