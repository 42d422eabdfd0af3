"""Times as records, tags and run ids have them: kiln/base/times.py alone knows the forms."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kiln.base import times, vocabulary

MOMENT = datetime(2026, 8, 1, 12, 0, 5, tzinfo=timezone.utc)


def test_both_forms_are_read_as_they_were_written() -> None:
    assert times.as_time(MOMENT) == "2026-08-01T12:00:05Z"
    assert times.as_stamp(MOMENT) == "20260801T120005Z"
    assert times.read_time(times.as_time(MOMENT)) == MOMENT
    assert times.read_stamp(times.as_stamp(MOMENT)) == MOMENT
    assert vocabulary.TIME.fits(times.now())


@pytest.mark.parametrize("write", [times.as_time, times.as_stamp])
def test_a_moment_of_another_zone_is_written_in_utc(write) -> None:
    assert write(MOMENT.astimezone(timezone(timedelta(hours=2)))) == write(MOMENT)
