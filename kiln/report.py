"""The checks as one HTML page that needs nothing else: to mail, to keep beside the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from kiln.paths import TEMPLATES
from kiln.record import Record


def write(path: Path, record: Record) -> None:
    """Write the report of a run's record."""
    path.write_text(render(record), encoding="utf-8")


def render(record: Record) -> str:
    """The page. Everything in it comes from the record and is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    checks = record.get("checks") or {"checks": []}
    by_file: dict[str, list[dict[str, Any]]] = {}
    for check in checks["checks"]:
        by_file.setdefault(check["file"].removeprefix("test_").replace("_", "-"), []).append(check)
    return environment.get_template("report.html.j2").render(record=record, by_file=by_file)
