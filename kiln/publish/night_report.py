"""The report of a night: for a terminal, as JSON, as Markdown for a job summary, as HTML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kiln.base.paths import build_dir
from kiln.base.templates import render
from kiln.base.times import as_stamp, utc_now
from kiln.base.vocabulary import printable
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish.night_results import RowResult

# In characters and in bytes: https://docs.aws.amazon.com/sns/latest/api/API_Publish.html
_SUBJECT, _MESSAGE = 100, 262144


def write(results: Sequence[RowResult], out: str | None) -> Path:
    """Write report.json, report.md and report.html to a folder; returns it."""
    when = utc_now()
    folder = Path(out) if out else build_dir() / "nightly" / as_stamp(when)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps([asdict(row) for row in results], indent=2))
    (folder / "report.md").write_text(as_markdown(results), encoding="utf-8")
    page = render(
        "nightly.html.j2",
        rows=[(row, _different(row)) for row in results],
        counts=night_counts(results),
        when=when.strftime("%Y-%m-%d %H:%M UTC"),
    )
    (folder / "report.html").write_text(page, encoding="utf-8", errors="backslashreplace")
    return folder


def night_counts(results: Sequence[RowResult]) -> str:
    """The sum in words: 2 built, 19 skipped, 0 failed, instances $1.20."""
    number = Counter(row.action for row in results)
    words = [f"{number[action]} {action}" for action in ("built", "skipped", "failed")]
    spent = [row.usd for row in results if row.usd is not None]
    return ", ".join([*words, f"instances ${sum(spent):,.2f}"] if spent else words)


def text(results: Sequence[RowResult]) -> str:
    """For a terminal: the failed rows last, then the sum."""
    order = {"skipped": 0, "built": 1, "failed": 2}
    lines = [
        f"{row.action:8}{row.row}  {row.ami_id or ''}  {'; '.join([row.why, *_different(row)])}"
        for row in sorted(results, key=lambda row: order[row.action])
    ]
    return "\n".join([*lines, night_counts(results)])


def _different(row: RowResult) -> list[str]:
    """What differs from the release before, grave differences first."""
    return [*row.changed, *([str(row.diff)] if row.diff else [])]


def as_markdown(results: Sequence[RowResult]) -> str:
    """A table for a job summary."""
    heading = ("row", "", "why", "AMI", "channel", "verdict", "checks", "seconds", "US$", "diff")
    rows = [
        (
            row.row,
            row.action,
            row.why,
            row.ami_id,
            f"{row.line} {row.channel}" if row.channel else row.line,
            row.verdict,
            row.checks,
            row.seconds,
            row.usd,
            "; ".join(_different(row)),
        )
        for row in results
    ]
    lines = [_cells(heading), _cells(["---"] * len(heading)), *map(_cells, rows)]
    return f"## AMI Kiln, nightly: {night_counts(results)}\n\n" + "\n".join(lines) + "\n"


def _cells(values: Sequence[object]) -> str:
    shown = (
        printable("" if value is None else str(value)).replace("|", "\\|").replace("\n", " ")
        for value in values
    )
    return f"| {' | '.join(shown)} |"


def send(target: Target, topic: str, results: Sequence[RowResult]) -> None:
    """Send the report to an SNS topic. Raises KilnError (exit status 1) if SNS refuses."""
    # SNS takes a message for a topic in the topic's own region alone.
    there = target.in_region(topic.split(":")[3])
    with aws.explained(f"the report could not be sent to {topic}"):
        aws.sns(there).publish(
            TopicArn=topic,
            Subject=f"AMI Kiln, nightly: {night_counts(results)}"[:_SUBJECT],
            Message=printable(text(results)).encode()[:_MESSAGE].decode(errors="ignore"),
        )
