"""`nightly`: builds the rows whose inputs have changed, and publishes them to the first channel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.vocabulary import as_stamp, utc_now
from kiln.cloud.target import Target
from kiln.pipeline.build import Outcome
from kiln.pipeline.plan import run_usd
from kiln.pipeline.record import Record, document
from kiln.pipeline.records import RecordsBucket, all_of
from kiln.publish.due import DueRow
from kiln.publish.lines import Line
from kiln.publish.publish import Publication, publish_row
from kiln.publish.regions import Say
from kiln.publish.report import Bring, Comparison, RowResult

# A night may take long; an earlier build belongs to the night before.
_LONGEST = timedelta(hours=12)

# A row's bucket of records, None without one. Without a row: that of `defaults`, since the release
# before may be of a row that is not in the matrix any more.
ShelfOf = Callable[[Recipe | None], RecordsBucket | None]
# What a channel of a line holds, beside what it held before.
Compare = Callable[[str, str], Comparison | None]


def run_night(
    rows: Sequence[DueRow],
    build: Callable[[list[Recipe]], Outcome],
    publish: Callable[[Line, str], Publication],
    compare: Compare,
) -> list[RowResult]:
    """Build and publish what is due; one row's failure stops no other.

    `build` builds recipes; `publish` publishes an AMI of a line to its first channel.
    """
    results = [_untouched(row) for row in rows if row.action in ("skip", "fail")]
    built = _built([row for row in rows if row.action == "build"], build)
    for row in rows:
        made = _result(row, "built", ami_id=row.ami_id)
        if row.action == "build":
            made = built[row.name]
        elif row.action != "publish":
            continue
        if made.action == "built":
            made = _published(row, made, publish, compare)
        results.append(made)
    return results


def _built(
    rows: Sequence[DueRow], build: Callable[[list[Recipe]], Outcome]
) -> dict[str, RowResult]:
    """Return the result of each row's build."""
    if not rows:
        return {}
    try:
        outcome = build([row.line.recipe for row in rows])
    except KilnError as error:
        return {row.name: _result(row, "failed", error.message) for row in rows}
    records = {record.recipe.name: record for record in outcome.built}
    results = {}
    for row in rows:
        failure = outcome.failures.get(row.name)
        why = failure.message if failure else "it was stopped"
        record = records.get(row.name)
        results[row.name] = _of_record(row, record) if record else _result(row, "failed", why)
    return results


def _published(
    row: DueRow,
    made: RowResult,
    publish: Callable[[Line, str], Publication],
    compare: Compare,
) -> RowResult:
    began = time.monotonic()
    try:
        release = publish(row.line, str(made.ami_id)).release
    except KilnError as error:
        return replace(made, action="failed", why=f"not published: {error.message}")
    seconds = round((made.seconds or 0) + time.monotonic() - began, 1)
    made = replace(made, channel=release.channel, seconds=seconds, verdict=release.verdict)
    return _compared(made, compare)


def finish_night(
    rows: Sequence[DueRow],
    planned: Mapping[str, str],
    records: Mapping[str, Record],
    compare: Compare,
) -> list[RowResult]:
    """Return what became of a night's rows when its items have ended, wherever they ran: what is
    still due has failed, and what was `planned` (row → why) and is not due any longer was built.

    `records` are those of the night's builds, by row.
    """
    results = []
    for row in rows:
        record = records.get(row.name)
        if row.action == "skip":
            ours = record if record and record.ami_id == row.ami_id else None
            result = _untouched(row)
            if ours or row.name in planned:
                made = _of_record(row, ours) if ours else result
                result = replace(
                    result,
                    action="built",
                    why=planned.get(row.name, row.why),
                    seconds=made.seconds,
                    checks=made.checks,
                    usd=made.usd,
                )
                result = _compared(result, compare)
        elif row.action != "fail" and record and record.status != "verified":
            result = _of_record(row, record)
        else:
            result = _result(row, "failed", ami_id=row.ami_id)
        results.append(result)
    return results


def _result(row: DueRow, action: str, why: str = "", **more: object) -> RowResult:
    return RowResult(row.name, action, why or row.why, line=row.line.name, **more)  # type: ignore[arg-type]


def _untouched(row: DueRow) -> RowResult:
    """Return the result of a row that needs nothing, or whose parent AMI is not there."""
    if row.action == "fail":
        return _result(row, "failed")
    return _result(row, "skipped", ami_id=row.ami_id, channel=row.channel, verdict=row.verdict)


def _compared(made: RowResult, compare: Compare) -> RowResult:
    diff = compare(str(made.line), str(made.channel))
    return replace(made, diff=diff, changed=diff.grave if diff else ())


def _of_record(row: DueRow, record: Record) -> RowResult:
    """Return what the record of a build says of its row."""
    checks, seconds = record.checks, record.seconds
    counts = f"{checks.passed} passed, {checks.failed} failed" if checks else None
    succeeded = record.status == "verified" and not record.left
    because = record.error or (f"its checks: {counts}" if counts else "it was not verified")
    return _result(
        row,
        "built" if succeeded else "failed",
        "" if succeeded else because,
        ami_id=record.ami_id,
        seconds=round(sum(seconds.values()), 1) if seconds else None,
        checks=counts,
        usd=run_usd(seconds, record.instance_type, record.verify_instance_type),
    )


def publish_built(
    line: Line,
    ami_id: str,
    target: Target,
    *,
    shelf: RecordsBucket | None,
    smoke_test: Callable[[Target, str], None],
    say: Say,
) -> Publication:
    """Publish an AMI that a night has built. One that another machine built has to pass
    `smoke_test` first, since that machine's verdict is not taken on trust."""
    if shelf:
        shelf.fetch_row(line.recipe.name, say)
    if all(build.ami_id != ami_id for build in all_of(line.recipe.name)):
        smoke_test(target, ami_id)
    return publish_row(line, target, ami_id=ami_id, why="nightly", say=say, shelf=shelf)


def newest_builds(recipes: Sequence[Recipe], shelf_of: ShelfOf, say: Say) -> dict[str, Record]:
    """Return the newest build of each row, on whichever machine, that began in a night's time."""
    earliest = as_stamp(utc_now() - _LONGEST)
    builds = {}
    for recipe in recipes:
        if shelf := shelf_of(recipe):
            shelf.fetch_row(recipe.name, say, newest=3)
        newest = next((each for each in all_of(recipe.name) if each.kind == "build"), None)
        if newest and newest.run_id >= earliest:
            builds[recipe.name] = newest
    return builds


def record_fetcher(recipes: Sequence[Recipe], shelf_of: ShelfOf, say: Say) -> Bring:
    """Return a function that fetches the record of a run that another machine did."""
    by_name = {recipe.name: recipe for recipe in recipes}

    def bring(row: str, run_id: str) -> None:
        if shelf := shelf_of(by_name.get(row)):
            shelf.fetch_runs({row: run_id}, say)

    return bring


def read_plan(path: Path) -> dict[str, str]:
    """Return row → why it was due, of what `nightly.plan --json` printed."""
    items = document(path).get("items")
    for item in items if isinstance(items, list) else [None]:
        fields = item if isinstance(item, dict) else {}
        row, why = fields.get("row"), fields.get("why")
        if not vocabulary.RECIPE_NAME.fits(row) or not isinstance(why, str):
            raise KilnError(
                f"{path}: not a plan of a night: `items` is not a list of rows, each with a reason",
                hint="./invoke nightly.plan --json > plan.json writes one",
            )
    return {item["row"]: item["why"] for item in items or []}
