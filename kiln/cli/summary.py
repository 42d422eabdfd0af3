"""The summary of a run for a person."""

from __future__ import annotations

from pathlib import Path

from kiln.base.paths import near
from kiln.pipeline.checks import Checks
from kiln.pipeline.record import Record


def summary(record: Record, unconfirmed: int = 0) -> str:
    """The summary: the AMI, what is on it, its checks, the number of unconfirmed facts that its
    recipe rests on, where to read more."""
    recipe = record.recipe
    checks = record.checks or Checks(0, 0, 0, ())
    emulated = f", {recipe['arch']} by {record.emulated}" if record.emulated else ""
    own = f"; checked with its own kernel by {record.own_kernel}" if record.own_kernel else ""
    note = f" ({record.image_note}{emulated}{own})" if record.image_note else ""
    holds = [
        f"{label} {recipe[name]}"
        for name, label in (
            ("driver", "driver"),
            ("cuda", "CUDA"),
            ("cudnn", "cuDNN"),
            ("nccl", "NCCL"),
            ("efa", "EFA"),
        )
        if recipe.get(name)
    ]
    failed = [
        f"    failed: {check.file}::{check.name}: {_first_line(check.message)}"
        for check in checks.checks
        if check.outcome == "failed"
    ]
    return "\n".join(
        [
            "",
            f"{record.ami_id or 'no AMI'}  {record.status}{note}",
            f"  {recipe['name']} in {record.region}",
            f"  on it    {recipe['distro']['name']}, {', '.join(holds)}",
            f"  checks   {checks.passed} passed, {checks.failed} failed, {checks.skipped} skipped",
            *failed,
            *(
                [f"  facts    {unconfirmed} unconfirmed: ./invoke check --strict"]
                if unconfirmed
                else []
            ),
            *([f"  left     {', '.join(record.left)}"] if record.left else []),
            f"  record   {near(Path(record.folder))}/record.json",
            f"  report   {near(Path(record.folder))}/report.html",
        ]
    )


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "no message")
