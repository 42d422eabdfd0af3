"""Channels, their history, and what is removed, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiln.publish.due import DueRow
from kiln.publish.lines import ChannelRow
from kiln.publish.retire import Retirement
from kiln.publish.sweep import Leftover

_NOTHING = "the channels hold nothing yet: ./invoke publish fills the first one"


def channels_table(rows: Sequence[ChannelRow]) -> str:
    """One line per line, channel and region."""
    heading = ("LINE", "CHANNEL", "REGION", "AMI", "DRIVER", "CUDA", "AGE", "VERDICT", "")
    cells = [
        (
            row.line,
            row.channel,
            row.region,
            row.ami_id,
            row.driver or "-",
            row.cuda or "-",
            "-" if row.age_days is None else f"{row.age_days:.0f} d",
            "verified" if row.verified else "NOT VERIFIED",
            "; ".join([*([row.drift] if row.drift else []), *row.opened]),
        )
        for row in rows
    ]
    return _table(heading, cells) if rows else _NOTHING


def history_table(rows: Sequence[Mapping[str, str | None]]) -> str:
    """One line per move, the newest first."""
    heading = ("WHEN", "CHANNEL", "BY", "ACTION", "AMI", "RECIPE", "WHY")
    keys = ("at", "channel", "by", "action", "ami_id", "recipe", "why")
    cells = [[str("-" if row[key] is None else row[key]) for key in keys] for row in rows]
    return _table(heading, cells) if rows else _NOTHING


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [heading, *rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(heading))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    )


def retirement_text(plan: Retirement, *, applied: bool) -> str:
    """What goes and what stays, and how to go on; who may use what beyond the declaration."""
    going = plan.would
    heading = ("STEP", "AMI", "REGION", "WHY")
    rows = [
        (
            step.step if not step.error else "FAILED",
            step.ami_id,
            step.region,
            step.error or step.why,
        )
        for step in going
    ] + [("keep", step.ami_id, step.region, step.why) for step in plan.kept]
    if not rows:
        return "there is no AMI of AMI Kiln here"
    failed = sum(bool(step.error) for step in going)
    if not going:
        last = "nothing would go" if not applied else "nothing had to go"
    elif applied:
        last = f"{len(going) - failed} of {len(rows)} AMIs have gone one step"
        last += f", {failed} could not" if failed else ""
    else:
        last = f"{len(going)} of {len(rows)} AMIs would go one step; --apply does it"
    beyond = [f"open beyond `share`: {what}" for what in plan.opened]
    return "\n".join([_table(heading, rows), *beyond, last])


def sweep_text(left: Sequence[Leftover], done: Sequence[Leftover], *, applied: bool) -> str:
    """What runs have left, or what became of it."""
    if not left:
        return "no run has left anything behind"
    rows = [
        (
            *(leftover.region, leftover.kind, leftover.id, leftover.run_id),
            leftover.error or ("removed" if applied else ""),
        )
        for leftover in (done if applied else left)
    ]
    last = "" if applied else f"\n{len(left)} resources; --apply removes them"
    return _table(("REGION", "KIND", "ID", "RUN", ""), rows) + last


def plan_text(rows: Sequence[DueRow], commands: Mapping[str, str]) -> str:
    """What is due in a night, each with its reason and command, and what is not."""
    due = [row for row in rows if row.due]
    lines = [f"build  {row.name}: {row.why}\n       {commands[row.name]}" for row in due]
    for action in ("skip", "fail"):
        lines += [f"{action}   {row.name}: {row.why}" for row in rows if row.action == action]
    return "\n".join(lines)
