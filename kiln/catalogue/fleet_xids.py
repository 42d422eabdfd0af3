"""Xids of the machines that run an image: what their events in CloudWatch Logs say."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
EventsByAmi = dict[str, list[dict[str, Any]]]


def groups_of_events(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """Where the images send their events, each once."""
    return tuple(dict.fromkeys(Telemetry(**recipe.telemetry).log_group for recipe in recipes))


def events_by_ami(
    target: Target, groups: Sequence[str], regions: Sequence[str], say: Callable[[str], None]
) -> EventsByAmi | None:
    """AMI → the Xid events of the last `DAYS` days on machines that run it, without test events.

    None, not an empty answer, where no region has such a log group, which is where no telemetry is
    set up, and where one may not be read: nobody could say then that an image had no Xid. `say`
    gets what cannot be read or is too much.
    """
    since = utc_now() - timedelta(days=DAYS)
    try:
        answers = in_regions(
            regions,
            lambda region: [_events(target.in_region(region), group, since) for group in groups],
        )
    except KilnError as error:
        say(f"Xids of the fleet are left out: {error}")
        return None
    found = [answer for each in answers.values() for answer in each if answer is not None]
    if any(len(answer) >= _MOST_EVENTS for answer in found):
        say(f"a region has more than {_MOST_EVENTS} Xids; the first are counted")
    by_ami: EventsByAmi = defaultdict(list)
    for event in (event for answer in found for event in map(_event, answer) if event):
        by_ami[event["image_id"]].append(event)
    return by_ami if found else None


def seen_xids(events: Iterable[Mapping[str, Any]]) -> tuple[SeenXid, ...]:
    """The Xids of events, most frequent first."""
    by_code: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        by_code[event["xid"]].append(event)
    seen = (
        SeenXid(
            xid,
            sum(event["count"] for event in same),
            len({event["instance_id"] for event in same}),
            max(event["at"] for event in same),
        )
        for xid, same in by_code.items()
    )
    return tuple(sorted(seen, key=lambda entry: (-entry.count, entry.xid)))


def _events(target: Target, group: str, since: datetime) -> list[dict[str, Any]] | None:
    """The events with a code as CloudWatch Logs has them; None where there is no such group."""
    client: Any = aws.client("logs", target)
    pages = client.get_paginator("filter_log_events").paginate(
        logGroupName=group,
        filterPattern="{ $.xid > 0 }",
        startTime=int(since.timestamp() * 1000),
        PaginationConfig={"MaxItems": _MOST_EVENTS},
    )
    with aws.explained(f"the events of {group} could not be read in {target.region}"):
        try:
            return [event for page in pages for event in page["events"]]
        except client.exceptions.ResourceNotFoundException:
            return None


def _event(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parts of a machine's event that are counted; None for a test event, and one that does
    not name its AMI, as those of older images."""
    try:
        event = json.loads(raw["message"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("injected"):
        return None
    xid, ami, count = event.get("xid"), event.get("image_id"), event.get("count")
    if type(xid) is not int or not vocabulary.AMI_ID.fits(ami):
        return None
    return {
        "xid": xid,
        "image_id": ami,
        "count": count if isinstance(count, int) and count > 0 else 1,
        "instance_id": str(event.get("instance_id", "")),
        "at": as_time(datetime.fromtimestamp(raw["timestamp"] / 1000, timezone.utc)),
    }
