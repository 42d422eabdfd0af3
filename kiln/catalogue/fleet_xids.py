"""Xids of the machines that run an image: what their events in CloudWatch Logs say."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.times import as_time, utc_now
from kiln.catalogue.model import SeenXid
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish.regions import in_regions
from kiln.telemetry.settings import Telemetry

DAYS = 30
# A GPU that is dying can send an event a second.
_MOST_EVENTS = 20_000
Say = Callable[[str], None]


def groups_of_events(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """Where the images send their events, each once."""
    return tuple(dict.fromkeys(Telemetry(**recipe.telemetry).log_group for recipe in recipes))


def xids_by_ami(
    target: Target, groups: Sequence[str], regions: Sequence[str], say: Say
) -> dict[str, tuple[SeenXid, ...]] | None:
    """AMI → the Xids of the last `DAYS` days on machines that run it, most frequent first, without
    drills. None where no region has such a log group, which is where no telemetry is set up, and
    where one may not be read: nobody could say then that an image had no Xid.

    `say` gets what cannot be read or is too much. An event that does not name its AMI, as
    those of older images, is not counted.
    """
    since = utc_now() - timedelta(days=DAYS)
    answers_by_region = in_regions(
        list(dict.fromkeys(regions)),
        lambda region: [_events(target.in_region(region), group, since) for group in groups],
    )
    by_ami: dict[str, dict[int, _Count]] = defaultdict(lambda: defaultdict(_Count))
    there, refused = False, []
    for region, answers in answers_by_region.items():
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, KilnError):
                refused.append(f"{region}: {answer}")
                continue
            if answer is None:
                continue
            there = True
            if len(answer) >= _MOST_EVENTS:
                say(f"{region}: {group} has more than {_MOST_EVENTS} Xids; the first are counted")
            for event in filter(None, map(_event, answer)):
                by_ami[event["image_id"]][event["xid"]].add(event)
    if refused:
        more = f" (and {len(refused) - 1} more)" if refused[1:] else ""
        say(f"Xids of the fleet are left out: {refused[0]}{more}")
    if refused or not there:
        return None
    return {ami: tuple(_in_order(counts)) for ami, counts in by_ami.items()}


class _Count:
    def __init__(self) -> None:
        self.count = 0
        self.instances: Counter[str] = Counter()
        self.last = ""

    def add(self, event: Mapping[str, Any]) -> None:
        number = event.get("count", 1)
        number = number if isinstance(number, int) and number > 0 else 1
        self.count += number
        self.instances[str(event.get("instance_id", ""))] += number
        self.last = max(self.last, event["at"])


def _in_order(counts: Mapping[int, _Count]) -> Iterator[SeenXid]:
    for xid, seen in sorted(counts.items(), key=lambda pair: (-pair[1].count, pair[0])):
        yield SeenXid(xid, seen.count, len(seen.instances), seen.last)


def _events(target: Target, group: str, since: datetime) -> list[dict[str, Any]] | KilnError | None:
    """The events with a code as CloudWatch Logs has them; None where there is no such group."""
    client: Any = aws.logs(target)
    pages = client.get_paginator("filter_log_events").paginate(
        logGroupName=group,
        filterPattern="{ $.xid > 0 }",
        startTime=int(since.timestamp() * 1000),
        PaginationConfig={"MaxItems": _MOST_EVENTS},
    )
    try:
        with aws.explained(f"the events of {group} could not be read"):
            try:
                return [event for page in pages for event in page["events"]]
            except client.exceptions.ResourceNotFoundException:
                return None
    except KilnError as error:
        return error


def _event(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        event = json.loads(raw["message"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("injected"):
        return None
    xid, ami = event.get("xid"), event.get("image_id")
    if type(xid) is not int or not vocabulary.AMI_ID.fits(ami):
        return None
    moment = datetime.fromtimestamp(raw["timestamp"] / 1000, timezone.utc)
    return {**event, "at": as_time(moment)}
