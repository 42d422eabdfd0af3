"""The fleet as a table, and an installation as text, JSON and HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.paths import build_dir
from kiln.base.templates import render
from kiln.base.times import as_stamp, utc_now

if TYPE_CHECKING:  # fleet.status needs nothing of an installation
    from kiln.fleet.install import Installation
    from kiln.fleet.status import FleetStatus


def status_text(rows: Sequence[FleetStatus]) -> str:
    """For a terminal: a line for each instance, and below it what is missing."""
    if not rows:
        return "no running instance"
    columns = [_cells(row) for row in rows]
    heads = (
        "instance",
        "type",
        "AMI",
        "driver",
        "agent",
        "configuration",
        "metric",
        "event",
        "Xids",
    )
    widths = [
        max(len(text) for text in (head, *(row[place] for row in columns)))
        for place, head in enumerate(heads)
    ]
    lines = [_line(heads, widths)]
    for each_row, row in zip(rows, columns, strict=True):
        lines.append(_line(row, widths))
        lines += [f"    {text}" for text in each_row.missing]
    good = sum(row.reports for row in rows)
    return "\n".join([*lines, f"{good} of {len(rows)} instances report"])


def installation_text(done: Installation) -> str:
    """For a terminal: each wave, then what was left out."""
    lines = []
    for number, wave in enumerate(done.waves, start=1):
        lines.append(f"wave {number}: {len(wave.ok)} of {len(wave.instances)} reporting")
        lines += [f"  ok          {key}" for key in wave.ok]
        for key in wave.failed:
            back = "put back as it was" if key in wave.rolled_back else f"left: {wave.kept[key]}"
            lines.append(f"  failed      {key}  {wave.why[key]}; {back}")
    lines += [f"  already     {key}" for key in done.already]
    lines += [f"  skipped     {key}  {why}" for key, why in done.skipped.items()]
    lines += [f"  not started {key}" for key in done.left]
    if done.stopped:
        lines.append("stopped: too many failed; the same command continues where this one stopped")
    return "\n".join(lines)


def write_installation(done: Installation) -> Path:
    """Write report.json and report.html; returns their folder."""
    when = utc_now()
    folder = build_dir() / "fleet" / as_stamp(when)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(done.as_json(), indent=2), encoding="utf-8")
    page = render(
        "fleet/report.html.j2",
        done=done,
        machines=done.machines,
        when=when.strftime("%Y-%m-%d %H:%M UTC"),
    )
    (folder / "report.html").write_text(page, encoding="utf-8", errors="backslashreplace")
    return folder


def _cells(status: FleetStatus) -> tuple[str, ...]:
    xids = ", ".join(f"{code}×{count}" for code, count in sorted(status.xids.items()))
    return (
        status.instance_id,
        status.instance_type,
        status.image_id,
        status.driver or "-",
        status.agent_version or "-",
        status.configuration or "-",
        _clock(status.last_metric),
        _clock(status.last_event),
        xids or "-",
    )


def _clock(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    today = moment.date() == utc_now().date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
