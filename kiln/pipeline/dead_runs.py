"""What runs of this checkout left when they were killed: removed before the next one begins."""

from __future__ import annotations

import shutil

from kiln.base import processes
from kiln.base.errors import KilnError
from kiln.base.paths import remove_short_path
from kiln.base.progress import Progress
from kiln.cloud import clean_up, runs
from kiln.cloud.target import Target


def clean_dead_runs(target: Target, progress: Progress) -> None:
    """Remove what crashed runs of this checkout left at this target, in any region.

    Runs elsewhere (another account, another lab) are only named: a build there removes them.
    """
    for dead in runs.dead(progress.say):
        if (dead.target, dead.place) != (target.kind, target.place):
            progress.say(
                f"run {dead.run_id} has not cleaned up in {dead.where}: a build there will"
            )
            continue
        there = target.in_region(dead.region)
        try:
            processes.end_processes(dead.run_id)
            # Killed while it made or removed its folder, it left one that leads nowhere.
            remove_short_path(dead.run_id)
        except KilnError as error:
            progress.say(f"run {dead.run_id} has not cleaned up: {error}")
            continue
        # Without `amis` the run was past its record.
        removal = clean_up.remove(dead.run_id, there, amis=dead.amis)
        shutil.rmtree(dead.state.parent / "ssh", ignore_errors=True)
        if removal.removed:
            what = ", ".join(removal.removed)
            progress.say(f"run {dead.run_id} had not cleaned up; removed {what}")
        if removal.failures:
            progress.say("\n".join(dict.fromkeys(removal.failures)))
        else:
            dead.state.unlink(missing_ok=True)
