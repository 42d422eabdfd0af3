"""Times in UTC as records, tags and AWS have them (2026-08-01T12:00:00Z), and as names of runs and
folders have them (20260801T120000Z)."""

from __future__ import annotations

from datetime import date, datetime, timezone

_TIME, _STAMP = "%Y-%m-%dT%H:%M:%SZ", "%Y%m%dT%H%M%SZ"


def utc_now() -> datetime:
    """This moment, with its time zone."""
    return datetime.now(timezone.utc)


def today() -> date:
    """The day by this machine's clock and zone, by which support ends."""
    return date.today()


def as_time(moment: datetime) -> str:
    """A moment as 2026-08-01T12:00:00Z; it must have a time zone."""
    return moment.astimezone(timezone.utc).strftime(_TIME)


def now() -> str:
    """This moment as 2026-08-01T12:00:00Z."""
    return as_time(utc_now())


def read_time(text: str) -> datetime:
    """A time in ISO 8601, as AWS writes it; without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def as_stamp(moment: datetime) -> str:
    """A moment as 20260801T120000Z; it must have a time zone."""
    return moment.astimezone(timezone.utc).strftime(_STAMP)


def read_stamp(text: str) -> datetime:
    """The moment of 20260801T120000Z. Raises ValueError."""
    return datetime.strptime(text, _STAMP).replace(tzinfo=timezone.utc)
