"""Runs the campaign's parts one after another and prints their figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from devel import bad_inputs
from devel.campaign import commands, ec2_faults, kills
from devel.campaign.world import world
from kiln.base import needs
from lab import control, host, settings

# Added to the index of the lab in use: the campaign takes its own lab down again and again.
_OTHER_LAB = 3


def campaign(minutes: float, say: Callable[[str], None]) -> int:
    """Run every part, each for its share of the minutes; 0 if none of them found anything.

    Raises KilnError (exit status 1) where the lab cannot run.
    """
    host.can_run()
    needs.ensure("packer", "ssh", "lab", install=True, say=say)
    share = minutes / 3
    lab = settings.current()
    # The lab's name is from the environment in every process that the campaign starts.
    lab = replace(lab, index=(lab.index + _OTHER_LAB) % 55)
    with settings.chosen(lab):
        with world(lab) as place:
            _, leaks = kills.campaign(place, share, say)
            faults, clean = ec2_faults.campaign(place, share, say)
        control.up(lab)
        try:
            _, swallowed = commands.campaign(lab, share, say)
        finally:
            control.clean(lab)
    inputs_good = bad_inputs.run_all(bad_inputs.cases(), say)
    return int(not (leaks == 0 and faults == clean and swallowed == 0 and inputs_good))
