"""What became of a row in a night."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kiln.base.errors import KilnError
from kiln.pipeline import plan
from kiln.pipeline.record import Record
from kiln.publish.night_plan import Impossible, Skipped
from kiln.publish.release_comparison import Comparison

Compare = Callable[[str, str], Comparison | None]
Action = Literal["built", "skipped", "failed"]


@dataclass(frozen=True)
class RowResult:
    """What became of a row.

    `seconds` of its build and its publication; None where neither began here. `usd` is the list
    price of its instances, None if it is not known. `verdict` is the value of the AMI's tag
    `kiln:verified`. `diff` compares with the release before, `changed` are its grave differences.
    """

    row: str
    action: Action
    why: str
    ami_id: str | None = None
    line: str | None = None
    channel: str | None = None
    seconds: float | None = None
    checks: str | None = None
    changed: tuple[str, ...] = ()
    usd: float | None = None
    verdict: str | None = None
    diff: Comparison | None = None


def of_skipped(row: Skipped) -> RowResult:
    """The result of a row that needs nothing."""
    return RowResult(
        row.row,
        "skipped",
        row.why,
        ami_id=row.ami_id,
        line=row.line,
        channel=row.channel,
        verdict=row.verdict,
    )


def of_impossible(row: Impossible) -> RowResult:
    """The result of a row whose parent AMI is not there."""
    return RowResult(row.recipe.name, "failed", row.why, line=row.recipe.channel_line)


def result_of(record: Record, why: str) -> RowResult:
    """What the record of a build says of its row."""
    name, checks = str(record.recipe["name"]), record.checks
    counts = f"{checks.passed} passed, {checks.failed} failed" if checks else None
    good = record.status == "verified" and not record.left
    return RowResult(
        name,
        "built" if good else "failed",
        why
        if good
        else record.error or (f"its checks: {counts}" if counts else "it was not verified"),
        record.ami_id,
        seconds=round(sum(record.seconds.values()), 1) if record.seconds else None,
        checks=counts,
        usd=plan.run_usd(record.seconds, record.instance_type, record.verify_instance_type),
    )


def comparison_of(compare: Compare, line: str, channel: str) -> Comparison | None:
    """The comparison; what is published is published, whether or not it can be compared."""
    try:
        return compare(line, channel)
    except KilnError as error:
        return Comparison("the release before", (), {}, (), f"not compared: {error.message}")
