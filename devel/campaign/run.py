"""Runs the campaign's parts one after another and prints their figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from devel import bad_inputs
from devel.campaign import commands, ec2_faults, kills, units
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
    share = minutes / 4
    lab = settings.current()
    # The lab's name is from the environment in every process that the campaign starts.
    lab = replace(lab, index=(lab.index + _OTHER_LAB) % 55)
    with settings.chosen(lab):
        with world(lab) as place:
            _, leaks = kills.campaign(place, share, say)
            faults, clean = ec2_faults.campaign(place, share, say)
        control.up(lab)
        try:
            counts = commands.campaign(lab, share, say)
            counts.add(units.campaign(share, say))
        finally:
            control.clean(lab)
    say(
        f"commands {counts.tried} of {counts.whole} / swallowed failures {counts.lost} "
        f"({counts.excused} survived for a reason, devel/campaign/survives.yaml)"
    )
    if counts.not_run:
        say(f"NOT TRIED: {', '.join(counts.not_run)}")
    inputs_good = bad_inputs.run_all(bad_inputs.cases(), say)
    commands_good = counts.lost == 0 and not counts.not_run
    return int(not (leaks == 0 and faults == clean and commands_good and inputs_good))
