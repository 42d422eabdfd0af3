"""The report of a night: for a terminal, as JSON, as Markdown for a job summary, as HTML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kiln.base.errors import KilnError
from kiln.base.paths import build_dir
from kiln.base.templates import render
from kiln.base.times import as_stamp, utc_now
from kiln.base.vocabulary import printable
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.image.diff import compare_records
from kiln.image.version_info import raw_version_info
from kiln.pipeline import record
from kiln.publish import channels
from kiln.publish.channels import Release
from kiln.publish.promote import grave

# In characters and in bytes: https://docs.aws.amazon.com/sns/latest/api/API_Publish.html
_SUBJECT, _MESSAGE = 100, 262144
# Changes that are named in a table; the JSON report has all.
_NAMED = 5

# Fetches the record of a run: row, run id.
Bring = Callable[[str, str], None]


@dataclass(frozen=True)
class Comparison:
    """What differs from the release before, whose AMI in the same region is `before`.

    `grave` needs `--accept` at a promotion. `counts` are the changes by severity and `changes` the
    changes as `./invoke diff --json` has them, most severe first; both are empty where `unknown`
    says why the images could not be compared.
    """

    before: str
    grave: tuple[str, ...]
    counts: Mapping[str, int]
    changes: tuple[Mapping[str, Any], ...]
    unknown: str = ""

    def __str__(self) -> str:
        if self.unknown:
            return f"to {self.before}: {self.unknown}"
        if not self.changes:
            return f"nothing changed since {self.before}"
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items() if number)
        named = [_shown(change) for change in self.changes[:_NAMED]]
        number = len(self.changes)
        if number > _NAMED:
            named.append(f"and {number - _NAMED} more")
        changes = "change" if number == 1 else "changes"
        return f"{number} {changes} since {self.before} ({counts}): {', '.join(named)}"


def _shown(change: Mapping[str, Any]) -> str:
    name, old, new = (f"{change['kind']} {change['name']}", change["old"], change["new"])
    if old is None:
        return f"{name} added"
    return f"{name} removed" if new is None else f"{name} {old} → {new}"


def compare_with_former(target: Target, line: str, channel: str, bring: Bring) -> Comparison | None:
    """Compare the channel's release with the one before; None if it is the first.

    `bring` fetches a record that is not here. What is published is published, whether or not it can
    be compared.
    """
    try:
        past = list(channels.past(target, line, channel))
    except KilnError as error:
        return Comparison("the release before", (), {}, (), f"not compared: {error.message}")
    old = next((each for each in past if each.ami_name != past[0].ami_name), None)
    if old is None:
        return None
    before, differences = old.images.get(target.region, old.ami_name), tuple(grave(old, past[0]))
    try:
        changes = compare_records(_version_info(old, bring), _version_info(past[0], bring))
    except KilnError as error:
        return Comparison(before, differences, {}, (), error.message)
    counts = Counter(change.severity for change in changes)
    return Comparison(
        before,
        differences,
        {severity: counts[severity] for severity in ("high", "medium", "low")},
        tuple(change.as_json() for change in changes),
    )


def _version_info(release: Release, bring: Bring) -> dict[str, Any]:
    path = build_dir() / release.recipe / release.run_id / "record.json"
    if not path.exists():
        bring(release.recipe, release.run_id)
    if not path.exists():
        raise KilnError(f"no record of run {release.run_id} here, so not compared")
    return raw_version_info(record.document(path), str(path))


@dataclass(frozen=True)
class RowResult:
    """What became of a row.

    `seconds` of its build and its publication; None where neither began here. `usd` is the list
    price of its instances, None if it is not known. `verdict` is the value of the AMI's tag
    `kiln:verified`. `diff` compares with the release before, `changed` are its grave differences.
    """

    row: str
    action: Literal["built", "skipped", "failed"]
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

    @property
    def different(self) -> str:
        """What differs from the release before, grave differences first."""
        return "; ".join([*self.changed, *([str(self.diff)] if self.diff else [])])


def write(results: Sequence[RowResult], out: str | None) -> Path:
    """Write report.json, report.md and report.html to a folder; return it."""
    when = utc_now()
    folder = Path(out) if out else build_dir() / "nightly" / as_stamp(when)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps([asdict(row) for row in results], indent=2))
    shown = {
        "rows": results,
        "counts": night_counts(results),
        "when": when.strftime("%Y-%m-%d %H:%M UTC"),
    }
    for name in ("md", "html"):
        text = render(f"nightly.{name}.j2", **shown)
        path = folder / f"report.{name}"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return folder


def night_counts(results: Sequence[RowResult]) -> str:
    """Return the sum in words: 2 built, 19 skipped, 0 failed, instances $1.20."""
    number = Counter(row.action for row in results)
    words = [f"{number[action]} {action}" for action in ("built", "skipped", "failed")]
    spent = [row.usd for row in results if row.usd is not None]
    return ", ".join([*words, f"instances ${sum(spent):,.2f}"] if spent else words)


def report_text(results: Sequence[RowResult]) -> str:
    """Return the report for a terminal: the failed rows last, then the sum."""
    order = {"skipped": 0, "built": 1, "failed": 2}
    lines = [
        f"{row.action:8}{row.row}  {row.ami_id or ''}  "
        + "; ".join(filter(None, [row.why, row.different]))
        for row in sorted(results, key=lambda row: order[row.action])
    ]
    return "\n".join([*lines, night_counts(results)])


def send(target: Target, topic: str, results: Sequence[RowResult]) -> None:
    """Send the report to an SNS topic."""
    # SNS takes a message for a topic in the topic's own region alone.
    there = target.in_region(topic.split(":")[3])
    with aws.explained(f"the report could not be sent to {topic}"):
        aws.client("sns", there).publish(
            TopicArn=topic,
            Subject=f"AMI Kiln, nightly: {night_counts(results)}"[:_SUBJECT],
            Message=printable(report_text(results)).encode()[:_MESSAGE].decode(errors="ignore"),
        )
