"""Gates: what must hold before a release is promoted, each with its evidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kiln.base.tags import VERIFIED, says_verified
from kiln.base.times import utc_now
from kiln.cloud import aws
from kiln.cloud.images import find_image
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish, Sign
from kiln.publish import images, provenance
from kiln.publish.channels import Held
from kiln.publish.regions import in_regions
from kiln.publish.release import Release


@dataclass(frozen=True)
class Gate:
    """Whether a condition holds, and the evidence. `accept` opens one that a person may accept."""

    name: str
    open: bool
    evidence: str
    acceptable: bool = False


def gates(
    release: Release,
    came: Held,
    present: Release | None,
    settings: Publish,
    target: Target,
    log_group: str | None,
) -> list[Gate]:
    """All gates of a promotion of `release`, which is in the channel before since `came`.

    `present` is what the channel holds now; `log_group` that of the image's Xid events, if it
    reports any. Raises KilnError (exit status 1) if AWS does not answer.
    """
    since = came.since
    judged = [
        _launches(release, target),
        _verdict(release, target),
        _soak(since, release, settings),
    ]
    judged.append(_difference(release, present))
    if settings.sign:
        judged.append(_signed(release, target, settings.sign))
    if settings.max_fatal_xids is not None:
        judged.append(_fleet(release, since, settings.max_fatal_xids, target, log_group))
    return judged


def _launches(release: Release, target: Target) -> Gate:
    """The image must be available in every region of the release."""
    wrong = images.not_available(target, release.images)
    evidence = "; ".join(wrong) or f"available in {', '.join(release.images)}"
    return Gate("launches", not wrong, evidence)


def _verdict(release: Release, target: Target) -> Gate:
    image = find_image(target, release.images[target.region])
    says = image.tags.get(VERIFIED, "") if image else ""
    return Gate(
        "verified", says_verified(says), f"{VERIFIED} says {says}" if says else "no verdict"
    )


def _soak(since: datetime, release: Release, settings: Publish) -> Gate:
    """`release.channel` is the channel that it is promoted to."""
    needed = settings.soak_hours.get(release.channel, 0)
    hours = (utc_now() - since).total_seconds() / 3600
    return Gate("soak", hours >= needed, f"{hours:.1f} h of {needed:g} h in the channel before")


def _signed(release: Release, target: Target, sign: Sign) -> Gate:
    """Each image is what the signed statement says of it."""
    wrong = provenance.mismatches(target, release.images, provenance.public_key(sign, target))
    evidence = "; ".join(
        f"{release.images[region]} in {region}: {reason}"
        for region, reasons in wrong.items()
        for reason in reasons
    )
    return Gate("signed", not evidence, evidence or f"in {', '.join(release.images)}")


def _difference(release: Release, present: Release | None) -> Gate:
    if present is None:
        return Gate("difference", True, "the channel holds nothing yet")
    changes = list(grave(present, release))
    if changes:
        return Gate("difference", False, "; ".join(changes), acceptable=True)
    return Gate("difference", True, f"nothing grave against {present.ami_name}")


def grave(old: Release, new: Release) -> Iterator[str]:
    """What users of the channel must know before it changes under them."""
    for name, relevant in _GRAVE.items():
        before, after = getattr(old.installed, name), getattr(new.installed, name)
        if relevant(before) != relevant(after):
            yield f"{name} {before or 'none'} → {after or 'none'}"


def _major(version: str | None) -> str:
    return (version or "").split(".")[0]


def _whole(version: str | None) -> str:
    return version or ""


_GRAVE: dict[str, Callable[[str | None], str]] = {
    "driver": _major,
    "kernel": _whole,
    "cuda": _major,
    "glibc": _whole,
}


def _fleet(
    release: Release, since: datetime, limit: int, target: Target, log_group: str | None
) -> Gate:
    """Fatal Xids of the image's instances during the soak, and instances that report nothing.

    EC2 forgets a terminated instance after about an hour, so those that ended before are not seen.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html
    """
    if log_group is None:
        return Gate("fleet", False, "the image reports no events", acceptable=True)

    def health(region: str) -> tuple[int, int, list[str]]:
        return _health(target.in_region(region), release.images[region], since, log_group)

    answers = in_regions(list(release.images), health)
    count = sum(number for number, _, _ in answers.values())
    fatal = sum(xids for _, xids, _ in answers.values())
    silent = [instance for _, _, instances in answers.values() for instance in instances]
    if not count:
        return Gate("fleet", False, "no instance runs this image", acceptable=True)
    evidence = f"{count} instances, {fatal} fatal Xids (at most {limit})"
    if silent:
        evidence += f"; without telemetry: {', '.join(silent)}"
    return Gate("fleet", fatal <= limit and not silent, evidence, acceptable=True)


def _health(
    target: Target, image_id: str, since: datetime, log_group: str
) -> tuple[int, int, list[str]]:
    """The number of instances of the image, their fatal Xids since then, and the silent ones."""
    with aws.explained(f"the fleet's health could not be asked in {target.region}"):
        pages = aws.ec2(target).get_paginator("describe_instances")
        running = [
            instance["InstanceId"]
            for page in pages.paginate(Filters=[{"Name": "image-id", "Values": [image_id]}])
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] == "running"
        ]
        fatal = 0
        silent = []
        for instance in running:
            events = _events(target, log_group, instance, since)
            if events is None:
                silent.append(instance)
            else:
                fatal += sum(map(fatal_xids, events))
    return len(running), fatal, silent


def _events(target: Target, log_group: str, instance: str, since: datetime) -> list[str] | None:
    """The events of an instance since then; None if it has never reported one. The monitor reports
    its own start, so a healthy instance has a stream."""
    from botocore.exceptions import ClientError

    logs = aws.logs(target)
    try:
        streams = logs.describe_log_streams(logGroupName=log_group, logStreamNamePrefix=instance)
    except ClientError as error:
        if error.response["Error"].get("Code") == "ResourceNotFoundException":
            return None  # no instance of the region has ever reported
        raise
    if not any(stream["logStreamName"] == instance for stream in streams["logStreams"]):
        return None
    pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName=log_group,
        logStreamNames=[instance],
        startTime=int(since.timestamp() * 1000),
    )
    return [event["message"] for page in pages for event in page["events"]]


def fatal_xids(message: str) -> int:
    """How many fatal Xids a line reports: drills, which are marked as injected, do not count."""
    try:
        event: Any = json.loads(message)
    except (ValueError, RecursionError):
        return 0
    if not isinstance(event, dict) or event.get("injected") or event.get("severity") != "fatal":
        return 0
    count = event.get("count", 1)
    return max(count, 1) if isinstance(count, int) else 1
