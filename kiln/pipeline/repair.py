"""The record of a run that was killed between its verdict and its record: repaired from the tags.

`verdict.judge` writes the record before it tags the AMI, and again afterwards. In between the AMI
says what the record does not yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from kiln.base.errors import KilnError
from kiln.base.tags import RUN_ID, VERIFIED
from kiln.base.verdict_tag import read_verdict
from kiln.cloud import runs
from kiln.cloud.runs import DeadRun, Run
from kiln.cloud.target import Target
from kiln.pipeline import record, report, verdict
from kiln.pipeline.record import Record


def settle(dead: DeadRun, target: Target) -> Record | None:
    """Complete the record of a killed run whose AMI has its verdict; None if it has none.

    Raises KilnError (exit status 1) if EC2 does not answer: the AMI must then not be removed.
    """
    run = Run(dead.run_id, dead.state.parent.parent.name, dead.state.parent)
    try:
        before = record.read_record(run.record)
    except KilnError:
        return None  # it was killed long before a verdict
    if before.ami_id is None or before.run_id != run.id:
        return None
    image = verdict.look_up(target, before.ami_id)
    if image is None:
        return None
    tags = image["tags"]
    tagged = read_verdict(tags.get(VERIFIED))
    if tagged is None:
        return None
    # A build's AMI is its own; that of `verify` may have an older verdict.
    is_build = before.kind == "build"
    if not (tags.get(RUN_ID) == run.id if is_build else tagged.at >= before.started):
        return None
    after = replace(before, status=tagged.status)
    if after != before:
        record.write_record(run, after)
        report.write_report(run.folder / "report.html", after)
    return after


def settle_here(target_of: Callable[[DeadRun], Target]) -> None:
    """Complete the records of killed runs in this checkout, as far as EC2 answers now."""
    # The next build, which would remove what such a file names, reports why it was refused.
    for dead in runs.dead(lambda reason: None):
        if (dead.state.parent / "record.json").exists():
            with contextlib.suppress(KilnError):
                target = target_of(dead)
                if not target.gone() and target.identified().place == dead.place:
                    settle(dead, target)
