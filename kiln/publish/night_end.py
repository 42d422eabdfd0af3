"""The end of a night whose builds ran anywhere: what became of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from kiln.base.times import as_stamp, utc_now
from kiln.pipeline.record import Record
from kiln.pipeline.records import all_of
from kiln.publish.night_plan import Night
from kiln.publish.night_results import (
    Compare,
    RowResult,
    comparison_of,
    of_impossible,
    of_skipped,
    result_of,
)

# A night may take long; an earlier build belongs to the night before.
_LONGEST = timedelta(hours=12)


def builds_of_the_night(rows: Sequence[str]) -> dict[str, Record]:
    """The newest build of each row of which there is a record here and that began in a night's
    time, by row."""
    earliest = utc_now() - _LONGEST
    builds = {}
    for row in rows:
        newest = next((record for record in all_of(row) if record.kind == "build"), None)
        if newest and newest.run_id >= as_stamp(earliest):
            builds[row] = newest
    return builds


def after_night(
    night: Night,
    planned: Mapping[str, str],
    records: Mapping[str, Record],
    compare: Compare,
) -> list[RowResult]:
    """What a night looks like when its items have ended, wherever they ran: what is still due has
    failed, and what was `planned` (row → why) and is not due any longer was built.

    `records` are those of the night's builds, by row; `compare` as in `run_night`.
    """
    results = [of_impossible(row) for row in night.impossible]
    for row in night.skipped:
        record = records.get(row.row)
        ours = record is not None and record.ami_id == row.ami_id
        if not ours and row.row not in planned:
            results.append(of_skipped(row))
            continue
        made = result_of(record, row.why) if record and ours else RowResult(row.row, "built", "")
        diff = comparison_of(compare, row.line, row.channel)
        results.append(
            replace(
                of_skipped(row),
                action="built",
                why=planned.get(row.row, row.why),
                seconds=made.seconds,
                checks=made.checks,
                usd=made.usd,
                changed=diff.grave if diff else (),
                diff=diff,
            )
        )
    for due in night.due:
        record = records.get(due.recipe.name)
        if record is None or record.status == "verified":
            result = RowResult(due.recipe.name, "failed", due.why, due.ami_id)
        else:
            result = result_of(record, due.why)
        results.append(replace(result, line=due.recipe.channel_line))
    return results
