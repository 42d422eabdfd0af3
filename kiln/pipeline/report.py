"""The AMI checks as one self-contained HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kiln.base.templates import render
from kiln.cloud.network import Try
from kiln.pipeline.checks import Check
from kiln.pipeline.record import Record


def write_report(path: Path, record: Record) -> None:
    """Write the report of a run's record."""
    # Half a surrogate pair, which JSON of an image may hold, is not a character of UTF-8.
    path.write_text(report_html(record), encoding="utf-8", errors="backslashreplace")


def report_html(record: Record) -> str:
    """The page. Everything in it comes from the records and is escaped."""
    components = _by_component(record.checks.checks if record.checks else ())
    failed = [
        check
        for component in components
        for check in component["checks"]
        if check["outcome"] == "failed"
    ]
    return render(
        "report.html.j2",
        record=record,
        components=components,
        failed=failed,
        skipped=_by_reason(record.checks.checks if record.checks else ()),
        kernel=((record.versions or {}).get("kernel") or {}).get("boots"),
        longest=max(record.component_seconds.values(), default=0) or 1,
        launches="; ".join(map(_launch_text, record.tries)),
    )


def _launch_text(launch: Try) -> str:
    """A launch that EC2 was asked for, in words."""
    where = f" in {launch.subnet_id}" if launch.subnet_id else ""
    what = f"{launch.stage}: {launch.instance_type}{where}, {launch.market}"
    return f"{what}: {launch.answer}" if launch.answer else what


def _by_reason(checks: Sequence[Check]) -> dict[str, list[str]]:
    """Return why checks were skipped → file::name of each, as in the source."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.outcome == "skipped":
            reasons.setdefault(check.message, []).append(f"{check.file}.py::{check.name}")
    return reasons


def _by_component(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks of each component, with their counts, in the order in which they ran."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for check in checks:
        name = check.file.removeprefix("test_").replace("_", "-")
        by_name.setdefault(name, []).append({**asdict(check), "component": name})
    return [
        {
            "name": name,
            "checks": entries,
            "reason": _common_reason(entries),
            **Counter(check["outcome"] for check in entries),
        }
        for name, entries in by_name.items()
    ]


def _common_reason(checks: list[dict[str, Any]]) -> str:
    """Return why all checks were skipped; empty if not all were, or if the reasons differ."""
    reasons = {(check["outcome"], check["message"]) for check in checks}
    (first, *more) = reasons
    return str(first[1]) if not more and first[0] == "skipped" else ""
