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
from kiln.pipeline.record import Record, Status


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
    status = _verdict_of(before, image["tags"])
    if status is None:
        return None
    after = replace(before, status=status)
    if after != before:
        record.write_record(run, after)
        report.write_report(run.folder / "report.html", after)
    return after


def _verdict_of(before: Record, tags: dict[str, str]) -> Status | None:
    """The verdict that a run with this record has given; None if it has given none."""
    tagged = read_verdict(tags.get(VERIFIED))
    if tagged is None:
        return None
    if before.kind == "build":  # the AMI is its own
        return tagged.status if tags.get(RUN_ID) == before.run_id else None
    if before.status != "unverified":
        return before.status
    # Another machine may have checked the same AMI since: `verdict.judge` tags it with the time at
    # which the record was written.
    own = (tagged.at, tagged.commit) == (before.finished, before.git_commit)
    return tagged.status if own else None


def settle_here(target_of: Callable[[DeadRun], Target]) -> None:
    """Complete the records of killed runs in this checkout, as far as EC2 answers now."""
    # The next build, which would remove what such a file names, reports why it was refused.
    for dead in runs.dead(lambda reason: None):
        if (dead.state.parent / "record.json").exists():
            with contextlib.suppress(KilnError):
                target = target_of(dead)
                if not target.gone() and target.identified().place == dead.place:
                    settle(dead, target)
