"""Runs the campaign's parts within a number of minutes and prints their figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from devel import bad_inputs
from devel.campaign import commands, ec2_faults, kills, profiles, units
from devel.campaign.world import world
from kiln.base import needs
from lab import control, host, settings

# Added to the index of the lab in use: the campaign takes its own lab down again and again. Far
# from the labs of neighbours and test processes, which count on from the first one.
_OTHER_LAB = 40
# How the time is divided; what a part does not need is the later ones'.
WEIGHTS = {
    "kills": 2,
    "faults": 2,
    "commands": 3,
    "units": 1,
    "inputs": 1,
    "mig rows": 1,
    "mig pairs": 1,
    "fuzz": 1,
}


@dataclass(frozen=True)
class Figure:
    """What a part did: its line, how many mistakes it found, and how many cases it did not try."""

    line: str
    bad: int
    not_tried: int = 0


class Clock:
    """Divides the time that is left among the parts that are left."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._end = now, now() + 60 * minutes
        self._left = dict(WEIGHTS)

    def minutes(self, part: str) -> float:
        """The minutes of a part that begins now."""
        whole = sum(self._left.values())
        return max(0.0, self._end - self._now()) / 60 * self._left.pop(part) / whole


def campaign(minutes: float, say: Callable[[str], None]) -> int:
    """Run every part, each for its share of the minutes; 0 if none of them found anything.

    Raises KilnError (exit status 1) where the lab cannot run.
    """
    host.can_run()
    needs.ensure("packer", "ssh", "lab", "tests", install=True, say=say)
    clock = Clock(minutes)
    lab = settings.current()
    # The lab's name is from the environment in every process that the campaign starts.
    lab = replace(lab, index=(lab.index + _OTHER_LAB) % 55)
    figures = []
    with settings.chosen(lab):
        with world(lab) as place:
            tried, leaks, whole = kills.campaign(place, clock.minutes("kills"), say)
            figures.append(Figure(f"points {tried} / leaks {leaks}", leaks, whole - tried))
            tried, clean, whole = ec2_faults.campaign(place, clock.minutes("faults"), say)
            figures.append(Figure(f"faults {tried} / clean {clean}", tried - clean, whole - tried))
        control.up(lab)
        try:
            counts = commands.campaign(lab, clock.minutes("commands"), say)
            counts.add(units.campaign(clock.minutes("units"), say))
        finally:
            control.clean(lab)
        figures.append(_of_commands(counts))
        figures.append(_of_inputs(clock.minutes("inputs"), say))
        for profile in (profiles.MIG_ROWS, profiles.MIG_PAIRS):
            ended = profiles.campaign(profile, clock.minutes(profile.name.lower()), say)
            number = ended.passed + ended.failed
            line = f"{profile.name}: tests {number} / failed {ended.failed}"
            figures.append(Figure(line, ended.failed, ended.not_tried))
        inputs, all_inputs, failed = profiles.fuzz(clock.minutes("fuzz"), say)
        line = f"damaged files and answers {inputs} / runs with a traceback or a loop {failed}"
        figures.append(Figure(line, failed, all_inputs - inputs))
    return verdict(figures, say)


def verdict(figures: list[Figure], say: Callable[[str], None]) -> int:
    """Print the figures; 1 if a part found anything. What was not tried has not passed."""
    for figure in figures:
        left = f" (NOT TRIED: {figure.not_tried})" if figure.not_tried else ""
        say(figure.line + left)
    return int(any(figure.bad for figure in figures))


def _of_commands(counts: commands.Counts) -> Figure:
    line = (
        f"commands {counts.tried} / swallowed failures {counts.lost} "
        f"({counts.excused} survived for a reason, devel/campaign/survives.yaml)"
    )
    if counts.not_run:
        line += f"; FAILED WITHOUT AN ATTACK: {', '.join(counts.not_run)}"
    if counts.no_time:
        line += f"; no time for {len(counts.no_time)} scripts"
    return Figure(line, counts.lost + len(counts.not_run), counts.whole - counts.tried)


def _of_inputs(minutes: float, say: Callable[[str], None]) -> Figure:
    chosen = bad_inputs.cases()
    results = bad_inputs.run_all(chosen, say, minutes)
    bad = sum(bool(result.wrong or result.traceback) for result in results)
    return Figure(bad_inputs.counts(results), bad, len(chosen) - len(results))
