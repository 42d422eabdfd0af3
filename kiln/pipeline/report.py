"""The AMI checks as one self-contained HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from kiln.base.paths import TEMPLATES
from kiln.pipeline.ami_checks import Check
from kiln.pipeline.record import Record


def write_report(path: Path, record: Record) -> None:
    """Write the report of a run's record."""
    # Half a surrogate pair, which JSON of an image may hold, is no character of UTF-8.
    path.write_text(report_html(record), encoding="utf-8", errors="backslashreplace")


def report_html(record: Record) -> str:
    """The page. Everything in it comes from the record and is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    components = _by_component(record.checks.checks if record.checks else ())
    failed = [
        check
        for component in components
        for check in component["checks"]
        if check["outcome"] == "failed"
    ]
    return environment.get_template("report.html.j2").render(
        record=record, components=components, failed=failed
    )


def _by_component(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks of each component, with their counts, in the order in which they ran."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for check in checks:
        name = check.file.removeprefix("test_").replace("_", "-")
        words = check.name.removeprefix("test_").replace("_", " ")
        by_name.setdefault(name, []).append({**asdict(check), "component": name, "words": words})
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
    """Why all checks were skipped; empty if not all were, or if the reasons differ."""
    reasons = {(check["outcome"], check["message"]) for check in checks}
    (first, *more) = reasons
    return str(first[1]) if not more and first[0] == "skipped" else ""
