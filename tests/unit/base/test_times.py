"""Times as records, tags and run ids have them: kiln/base/vocabulary.py alone knows the forms."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kiln.base import vocabulary

MOMENT = datetime(2026, 8, 1, 12, 0, 5, tzinfo=timezone.utc)


def test_both_forms_are_read_as_they_were_written() -> None:
    assert vocabulary.as_time(MOMENT) == "2026-08-01T12:00:05Z"
    assert vocabulary.as_stamp(MOMENT) == "20260801T120005Z"
    assert vocabulary.read_time(vocabulary.as_time(MOMENT)) == MOMENT
    assert vocabulary.read_stamp(vocabulary.as_stamp(MOMENT)) == MOMENT
    assert vocabulary.TIME.fits(vocabulary.now())


@pytest.mark.parametrize("write", [vocabulary.as_time, vocabulary.as_stamp])
def test_a_moment_of_another_zone_is_written_in_utc(write) -> None:
    assert write(MOMENT.astimezone(timezone(timedelta(hours=2)))) == write(MOMENT)
