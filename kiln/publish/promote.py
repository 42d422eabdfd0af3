"""`promote` and `rollback`: a channel moves to a release that exists; nothing is copied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import VERIFIED, says_verified
from kiln.base.times import utc_now
from kiln.cloud import aws
from kiln.cloud.images import Image, find_image
from kiln.cloud.target import Target
from kiln.publish import channels
from kiln.publish.channels import Held, Release
from kiln.publish.copies import bring_back
from kiln.publish.lines import Line, require_channel
from kiln.publish.move import Move, held_in, move_everywhere, moved_now, warn_skipped_regions
from kiln.publish.regions import Say, answering, in_regions


@dataclass(frozen=True)
class Gate:
    """Whether a condition of a promotion holds, and the evidence. A person may open an `acceptable`
    one."""

    name: str
    open: bool
    evidence: str
    acceptable: bool = False

    def accepted(self) -> Gate:
        """Return the gate as a person opens it, if it may be."""
        if self.open or not self.acceptable:
            return self
        return replace(self, open=True, evidence=f"{self.evidence} (accepted)")


@dataclass(frozen=True)
class Promotion:
    """A promotion that was judged, and carried out unless a gate is closed or it was a dry run."""

    release: Release
    gates: tuple[Gate, ...]
    steps: tuple[Move, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether every gate is open."""
        return all(gate.open for gate in self.gates)


def promote_line(
    line: Line,
    to: str,
    target: Target,
    *,
    accept: bool = False,
    dry_run: bool = False,
    why: str = "",
    say: Say,
) -> Promotion:
    """Promote what the channel before `to` holds; with `accept`, also through gates that a person
    may open. If a gate stays closed, or for a dry run, nothing moves."""
    names = line.settings.channels
    if require_channel(to, line.settings) == names[0]:
        raise KilnError(
            f"nothing is promoted to {to}, the first channel: ./invoke publish fills it"
        )
    source = names[names.index(to) - 1]
    target = answering(target)
    came = channels.held(target, line.name, source)
    if came is None or came.release is None:
        how = f"promote --line {line.name} --to {source}" if source != names[0] else "publish"
        raise KilnError(
            f"{source} of {line.name}, which {to} follows, holds nothing in {target.region}",
            hint=f"./invoke {how} comes before",
        )
    if behind := _not_holding(came.release, target):
        raise operation_failed(
            f"a move of {source} of {line.name} was interrupted: it does not hold "
            f"{came.release.ami_name} in {', '.join(behind)}; run that again, it continues"
        )
    release = came.release.into(to, moved_now(target, "promote", why))
    before = held_in(target, list(release.images), line.name, to)
    present = before.get(target.region)
    gates = judge(release, came, present.release if present else None, line, target)
    if accept:
        gates = [gate.accepted() for gate in gates]
    promotion = Promotion(release, tuple(gates))
    if promotion.allowed:
        warn_skipped_regions(present, release.ami_name, release.images, say)
    if dry_run or not promotion.allowed:
        return promotion
    bring_back(target, release.images, line.settings, say)
    steps = move_everywhere(target, release, before, line, say)
    return replace(promotion, steps=tuple(steps))


# Gates


def judge(
    release: Release, came: Held, present: Release | None, line: Line, target: Target
) -> list[Gate]:
    """Return all gates of a promotion of `release`, which is in the channel before since `came`;
    `present` is what the channel holds now."""
    images = _images(release, target)
    gone = _not_available(release, images)
    home = images[target.region]
    verdict = home.tags.get(VERIFIED, "") if home else ""
    hours = (utc_now() - came.since).total_seconds() / 3600
    needed = line.settings.soak_hours.get(release.channel, 0)
    changes = list(grave(present, release)) if present else []
    against = (
        f"nothing grave against {present.ami_name}" if present else "the channel holds nothing yet"
    )
    gates = [
        Gate("launches", not gone, "; ".join(gone) or f"available in {', '.join(images)}"),
        Gate("verified", says_verified(verdict), f"{VERIFIED} says {verdict or 'nothing'}"),
        Gate("soak", hours >= needed, f"{hours:.1f} h of {needed:g} h in the channel before"),
        Gate("difference", not changes, "; ".join(changes) or against, acceptable=True),
    ]
    if line.settings.sign:
        gates.append(_signed(release, line, target))
    if line.settings.max_fatal_xids is not None:
        gates.append(_fleet(release, came.since, line.settings.max_fatal_xids, line, target))
    return gates


def _images(release: Release, target: Target) -> dict[str, Image | None]:
    """Return the release's AMI of each region; None where it is gone."""
    return in_regions(
        list(release.images),
        lambda region: find_image(target.in_region(region), release.images[region]),
    )


def _not_available(release: Release, images: dict[str, Image | None]) -> list[str]:
    """Return the AMIs that cannot be launched, in words."""
    states = {region: image.state if image else "gone" for region, image in images.items()}
    return [
        f"{release.images[region]} in {region} is {state}"
        for region, state in states.items()
        if state != "available"
    ]


def _signed(release: Release, line: Line, target: Target) -> Gate:
    from kiln.publish.provenance import public_key, verify_image

    assert line.settings.sign  # noqa: S101
    key = public_key(line.settings.sign, target)
    statements = in_regions(
        list(release.images),
        lambda region: verify_image(target.in_region(region), release.images[region], key),
    )
    evidence = "; ".join(
        f"{statement.ami_id} in {region}: {reason}"
        for region, statement in statements.items()
        for reason in statement.wrong
    )
    return Gate("signed", not evidence, evidence or f"in {', '.join(release.images)}")


def grave(old: Release, new: Release) -> Iterator[str]:
    """Yield what users of the channel must know before it changes under them: another kernel or
    glibc, and another branch of driver or CUDA."""
    for name in ("driver", "kernel", "cuda", "glibc"):
        before, after = getattr(old.installed, name) or "", getattr(new.installed, name) or ""
        if name in ("driver", "cuda"):
            same = before.split(".")[0] == after.split(".")[0]
        else:
            same = before == after
        if not same:
            yield f"{name} {before or 'none'} → {after or 'none'}"


def _fleet(release: Release, since: datetime, limit: int, line: Line, target: Target) -> Gate:
    """Return the gate of fatal Xids of the image's instances during the soak, and of instances that
    report nothing.

    EC2 forgets a terminated instance after about an hour, so those that ended before are not seen.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html
    """
    log_group = line.log_group
    if log_group is None:
        return Gate("fleet", False, "the image reports no events", acceptable=True)

    def health(region: str) -> dict[str, int | None]:
        return _fatal_xids(target.in_region(region), release.images[region], since, log_group)

    answers = in_regions(list(release.images), health)
    xids = {name: count for each in answers.values() for name, count in each.items()}
    if not xids:
        return Gate("fleet", False, "no instance runs this image", acceptable=True)
    fatal = sum(count or 0 for count in xids.values())
    silent = [instance for instance, count in xids.items() if count is None]
    evidence = f"{len(xids)} instances, {fatal} fatal Xids (at most {limit})"
    if silent:
        evidence += f"; without telemetry: {', '.join(silent)}"
    return Gate("fleet", fatal <= limit and not silent, evidence, acceptable=True)


def _fatal_xids(
    target: Target, image_id: str, since: datetime, log_group: str
) -> dict[str, int | None]:
    """Return the fatal Xids of each running instance of the image since then; None for one that has
    never reported anything."""
    running = [
        {"Name": "image-id", "Values": [image_id]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    with aws.explained(f"the fleet's health could not be asked in {target.region}"):
        ec2 = aws.ec2(target)
        events = {
            instance["InstanceId"]: _events(target, log_group, instance["InstanceId"], since)
            for found in aws.paginated(ec2, "describe_instances", "Reservations", Filters=running)
            for instance in found["Instances"]
        }
    return {
        name: None if messages is None else sum(map(fatal_xids, messages))
        for name, messages in events.items()
    }


def _events(target: Target, log_group: str, instance: str, since: datetime) -> list[str] | None:
    """Return the events of an instance since then; None if it has never reported one. The monitor
    reports its own start, so a healthy instance has a stream."""
    logs = aws.client("logs", target)
    try:
        streams = logs.describe_log_streams(logGroupName=log_group, logStreamNamePrefix=instance)
    except logs.exceptions.ResourceNotFoundException:
        return None  # no instance of the region has ever reported
    if not any(stream["logStreamName"] == instance for stream in streams["logStreams"]):
        return None
    start = int(since.timestamp() * 1000)
    query = {"logGroupName": log_group, "logStreamNames": [instance], "startTime": start}
    events = aws.paginated(logs, "filter_log_events", "events", **query)
    return [event["message"] for event in events]


def fatal_xids(message: str) -> int:
    """Return how many fatal Xids a line reports: test events, marked as injected, do not count."""
    try:
        event: Any = json.loads(message)
    except (ValueError, RecursionError):
        return 0
    if not isinstance(event, dict) or event.get("injected") or event.get("severity") != "fatal":
        return 0
    count = event.get("count", 1)
    return max(count, 1) if isinstance(count, int) else 1


# Rollback


@dataclass(frozen=True)
class Rollback:
    """What a channel went back to. `kept` are the regions, with their AMI, that the release was
    never published to: the channel holds there what it held."""

    release: Release
    steps: tuple[Move, ...]
    kept: tuple[tuple[str, str], ...] = ()


def roll_back(
    line: Line, channel: str, target: Target, *, to: str | None = None, why: str = "", say: Say
) -> Rollback:
    """Move a channel back, in all regions, to the release before its present one, or to the one
    with the AMI `to`."""
    require_channel(channel, line.settings)
    target = answering(target)
    now = channels.held(target, line.name, channel)
    if now is None:
        raise operation_failed(f"{channel} of {line.name} holds nothing in {target.region}")
    former = _unfinished(now, target) if to is None else None
    if former:
        say(f"continues the interrupted rollback to {former.ami_name}")
    former = former or _former(now, to, target)
    if gone := _not_available(former, _images(former, target)):
        raise operation_failed(
            f"{former.ami_name} no longer launches, so nothing moved: {'; '.join(gone)}",
            hint="name another one with --to ami-…: ./invoke history shows them",
        )
    release = former.into(channel, moved_now(target, "rollback", why))
    before = held_in(target, list(release.images), line.name, channel)
    bring_back(target, release.images, line.settings, say)
    steps = move_everywhere(target, release, before, line, say)
    warn_skipped_regions(now, release.ami_name, release.images, say)
    present = now.release.images if now.release else {}
    kept = tuple((place, ami) for place, ami in present.items() if place not in release.images)
    return Rollback(release, tuple(steps), kept)


def _unfinished(now: Held, target: Target) -> Release | None:
    """Return the release of a rollback that has not reached every region.

    Without this, the run that follows a killed one would go back one release further.
    """
    release = now.release
    if release is None or release.moved.action != "rollback":
        return None
    return release if _not_holding(release, target) else None


def _not_holding(release: Release, target: Target) -> list[str]:
    """Return the regions of a release in which its channel does not hold it."""
    held = held_in(target, list(release.images), release.line, release.channel)
    return [
        region
        for region, image_id in release.images.items()
        if region not in held or held[region].image_id != image_id
    ]


def _former(now: Held, to: str | None, target: Target) -> Release:
    """Return the release to go back to."""
    line, channel, past = now.line, now.channel, list(channels.past(target, now.line, now.channel))
    if to:
        for release in past:
            if to in release.images.values():
                return release
        amis = dict.fromkeys(release.images.get(target.region, "") for release in past)
        held = ", ".join(filter(None, amis))
        raise KilnError(f"{channel} of {line} never held {to}", hint=f"it held: {held}")
    came = channels.arrival(past, now.image_id, target.region)
    for release in past[came + 1 :]:
        if release.images.get(target.region, now.image_id) != now.image_id:
            return release
    raise operation_failed(
        f"{channel} of {line} held nothing before {now.image_id} in {target.region}"
    )
