"""Moves a channel to a release in all its regions, and the launch templates that follow it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kiln.base.errors import KilnError, operation_failed
from kiln.base.times import now
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.publishing import LaunchTemplate
from kiln.publish import channels, parameters
from kiln.publish.channels import Held
from kiln.publish.launch_templates import follow
from kiln.publish.regions import in_regions
from kiln.publish.release import Action, Moved, Release

# How often a channel is read until it holds what was written. SSM answers before it has looked the
# AMI up, and if it does not find it, it leaves the parameter as it was.
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html (DataType)
_READS = 30


@dataclass(frozen=True)
class Move:
    """What a move did in a region. `changed` is False where the channel held the image already."""

    line: str
    channel: str
    region: str
    ami_id: str
    changed: bool
    before: str | None
    templates: tuple[str, ...] = ()


def held_in(target: Target, regions: Sequence[str], line: str, channel: str) -> dict[str, Held]:
    """What a channel holds in each region in which it holds something."""
    by_region = in_regions(
        regions, lambda region: channels.held(target.in_region(region), line, channel)
    )
    return {region: item for region, item in by_region.items() if item is not None}


def say_left_out(
    now: Held | None, ami_name: str, regions: Collection[str], say: Callable[[str], None]
) -> None:
    """Say in which regions a channel will keep its present AMI, because the one that is about to
    come into it is not published there. `now` is what the channel holds in the target's region;
    the others are not asked: one that does not answer any more may be left out for that."""
    if now is None or now.release is None:
        return
    for region, ami_id in now.release.images.items():
        if region not in regions:
            say(
                f"{region}: {now.channel} of {now.line} keeps {ami_id}: {ami_name} is not "
                "published there"
            )


def moved_now(target: Target, action: Action, why: str) -> Moved:
    """A move at this moment, by whom the credentials belong to."""
    return Moved(
        at=now(),
        by=aws.identity(target),
        action=action,
        why=why,
    )


def move_one(target: Target, release: Release, before: Held | None) -> bool:
    """Let the release's channel hold its image of the target's region; False if it did already.

    `before` is what the channel held when the move was decided. Raises KilnError (exit status 1)
    if somebody else has moved the channel since: nothing is overwritten then.
    """
    line, channel, region = release.line, release.channel, target.region
    image_id = release.images[region]
    now = channels.held(target, line, channel)
    if now and now.image_id == image_id and now.release and now.release.images == release.images:
        return False
    if (now.version if now else 0) != (before.version if before else 0):
        raise _moved_meanwhile(line, channel, region, now)
    tags = parameters.tags_of_line(line)
    with aws.explained(f"{channel} of {line} could not be moved in {region}"):
        parameters.put(
            target,
            tags,
            Name=channels.release_parameter(line, channel),
            Value=release.as_json(),
            Type="String",
            Overwrite=True,
            Description=f"what {channel} of {line} holds, by AMI Kiln",
        )
        if now and now.image_id == image_id:
            return True
        version = _put_image(target, release, image_id, tags, first=now is None)
    if version != (now.version if now else 0) + 1:
        raise operation_failed(
            f"{channel} of {line} was moved by somebody else in {region} at the same moment: it "
            f"holds {image_id} now",
            hint=f"see ./invoke history --line {line} --channel {channel}",
        )
    _require_held(target, release, version)
    return True


def _require_held(target: Target, release: Release, version: int) -> None:
    """Raises KilnError (exit status 1) if a channel does not come to hold the image of its region,
    written as that version."""
    line, channel, image_id = release.line, release.channel, release.images[target.region]
    for _ in range(_READS):
        now = channels.held(target, line, channel)
        if now and now.image_id == image_id:
            return
        if now and now.version >= version:
            raise _moved_meanwhile(line, channel, target.region, now)
        time.sleep(target.poll_seconds)
    raise operation_failed(
        f"SSM has taken {image_id} for {channel} of {line} in {target.region} and does not show "
        f"it: the channel holds {now.image_id if now else 'nothing'}",
        hint="SSM refuses an AMI that ec2:DescribeImages does not show to these credentials; run "
        "it again when it does",
    )


def _put_image(
    target: Target, release: Release, image_id: str, tags: Mapping[str, str], *, first: bool
) -> int:
    """Write the image's parameter; its new version. Without `first` it must exist already."""
    from botocore.exceptions import ClientError

    line, channel = release.line, release.channel
    try:
        return parameters.put(
            target,
            tags,
            Name=channels.image_parameter(line, channel),
            Value=image_id,
            Type="String",
            DataType="aws:ec2:image",
            Overwrite=not first,
            Description=f"the AMI of {channel} of {line}, by AMI Kiln",
        )
    except ClientError as error:
        if error.response["Error"].get("Code") == "ParameterAlreadyExists":
            raise _moved_meanwhile(
                line, channel, target.region, channels.held(target, line, channel)
            ) from None
        raise


def _moved_meanwhile(line: str, channel: str, region: str, now: Held | None) -> Exception:
    holds = f"it holds {now.image_id} since {now.since:%Y-%m-%d %H:%M}" if now else "it is gone"
    return operation_failed(
        f"{channel} of {line} was changed by somebody else in {region} meanwhile: {holds}; nothing "
        "was overwritten there",
        hint=f"see ./invoke history --line {line} --channel {channel}, then run it again",
    )


def move_everywhere(
    target: Target,
    release: Release,
    before: Mapping[str, Held],
    templates: Sequence[LaunchTemplate],
    say: Callable[[str], None],
) -> list[Move]:
    """Let the channel hold the release in each of its regions, one after the other.

    `before` is what it held when the move was decided. Raises KilnError (exit status 1) if a
    region refuses; the message says which regions have moved. A second run continues.
    """
    home = target.region
    regions = [home, *(region for region in release.images if region != home)]
    done: list[Move] = []
    moved: list[str] = []
    for region in regions:
        there = target.in_region(region)
        held = before.get(region)
        try:
            changed = move_one(there, release, held)
            moved.append(region)
            followed = follow(there, release, templates)
        except KilnError as error:
            raise _halfway(error, release, moved, regions) from None
        step = Move(
            release.line,
            release.channel,
            region,
            release.images[region],
            changed,
            held.image_id if held else None,
            followed,
        )
        done.append(step)
        if changed:
            was = f", before {step.before}" if step.before else ""
            say(f"{release.channel} of {release.line} in {region}: {step.ami_id}{was}")
    return done


def _halfway(
    error: KilnError, release: Release, moved: Sequence[str], regions: Sequence[str]
) -> KilnError:
    left = ", ".join(regions[len(moved) :])
    return operation_failed(
        f"{error.message}\n  moved to {release.ami_name}: {', '.join(moved) or 'none'}; "
        f"not: {left or 'none'}",
        hint="; ".join(filter(None, [error.hint, "run it again to go on"])),
    )
