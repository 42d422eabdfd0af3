"""Runs the campaign's parts within a number of minutes and prints their figures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from devel import bad_inputs
from devel.campaign import commands, ec2_faults, inputs, kills, profiles, units
from devel.campaign.book import Book, opened
from devel.campaign.testbed import testbeds
from kiln.base import needs
from kiln.base.errors import KilnError
from lab import control, host, settings
from lab.settings import LABS, Lab

# Added to the index of the lab in use: the campaign takes its own lab down again and again. Far
# from the labs of neighbours and test processes, which count on from the first one.
_OTHER_LAB = 40
# Builds, and recipes whose commands fail, that run at once.
_AT_ONCE = os.cpu_count() or 1
# How the time is divided; what a part does not need is the later ones'.
WEIGHTS = {
    "kills": 2,
    "faults": 2,
    "commands": 3,
    "units": 1,
    "inputs": 1,
    "fuzz": 1,
    **{profile.name: 1 for profile in profiles.WHOLE},
}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """What a part did: its line, how many mistakes it found, and how many cases it did not try."""

    line: str
    bad: int
    not_tried: int = 0
    when: str = ""


class Clock:
    """Divides the time that is left among the parts that are left."""

    def __init__(
        self,
        minutes: float,
        parts: Sequence[str] = tuple(WEIGHTS),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now, self._end = now, now() + 60 * minutes
        self._left = {part: WEIGHTS[part] for part in parts}

    def minutes(self, part: str) -> float:
        """The minutes of a part that begins now."""
        whole = sum(self._left.values())
        return max(0.0, self._end - self._now()) / 60 * self._left.pop(part) / whole


def chosen(names: str | None) -> list[str]:
    """The parts that `--part a,b` names, in their order; all without one.

    Raises KilnError for an unknown part.
    """
    wanted = [name.strip() for name in names.split(",")] if names else list(WEIGHTS)
    for name in wanted:
        if name not in WEIGHTS:
            raise KilnError(
                f"--part {name!r} is not a part of the campaign",
                hint=f"use one or several, with commas: {', '.join(WEIGHTS)}",
            )
    return [part for part in WEIGHTS if part in wanted]


def campaign(minutes: float, say: Say, only: str | None = None) -> dict[str, Any]:
    """Run the parts, each for its share of the minutes; returns their figures, and the exit status
    0 if none of them found anything.

    Raises KilnError (exit status 2) for an unknown part, (1) where the lab cannot run.
    """
    parts = chosen(only)
    host.can_run()
    needs.ensure("packer", "ssh", "lab", "tests", install=True, say=say)
    clock = Clock(minutes, parts)
    lab = settings.current()
    # The lab's name is from the environment in every process that the campaign starts.
    lab = replace(lab, index=(lab.index + _OTHER_LAB) % LABS)
    figures: dict[str, Figure] = {}
    with settings.chosen(lab):
        for part in parts:
            book = opened(part)
            figure = _PARTS[part](lab, clock.minutes(part), say, book)
            figures[part] = replace(figure, when=book.when())
            verdict([figures[part]], say)
    say("")
    status = verdict(list(figures.values()), say)
    of_parts = [{"part": part, **asdict(figure)} for part, figure in figures.items()]
    return {"exit_status": status, "parts": of_parts}


def verdict(figures: list[Figure], say: Say) -> int:
    """Print the figures; 1 if a part found anything. What was not tried has not passed."""
    for figure in figures:
        left = f" (NOT TRIED: {figure.not_tried})" if figure.not_tried else ""
        say(figure.line + left + (f" [{figure.when}]" if figure.when else ""))
    return int(any(figure.bad for figure in figures))


def _kills(lab: Lab, minutes: float, say: Say, book: Book) -> Figure:
    with testbeds(lab, _AT_ONCE) as places:
        tried, leaks, whole = kills.campaign(places, minutes, say, book)
    return Figure(f"points {tried} / leaks {leaks}", leaks, whole - tried)


def _faults(lab: Lab, minutes: float, say: Say, book: Book) -> Figure:
    # Most of these builds wait.
    with testbeds(lab, 2 * _AT_ONCE) as places:
        tried, bad, whole = ec2_faults.campaign(places, minutes, say, book)
    return Figure(f"faults {tried} / clean {tried - bad}", bad, whole - tried)


def _commands(lab: Lab, minutes: float, say: Say, book: Book) -> Figure:
    control.up(lab)
    try:
        return _of_calls(
            "provisioners", commands.campaign(lab, minutes, say, book, at_once=_AT_ONCE), book
        )
    finally:
        control.clean(lab)


def _units(lab: Lab, minutes: float, say: Say, book: Book) -> Figure:
    return _of_calls("units", units.campaign(minutes, say, book), book)


def _of_calls(what: str, counts: commands.Counts, book: Book) -> Figure:
    line = (
        f"commands of {what} {counts.tried} / swallowed failures {counts.lost} "
        f"({book.excused()} survived for a reason, devel/campaign/survives.yaml)"
    )
    if counts.not_run:
        line += f"; FAILED WITHOUT AN ATTACK: {', '.join(counts.not_run)}"
    if counts.no_time:
        line += f"; no time for {len(counts.no_time)} scripts"
    return Figure(line, counts.lost + len(counts.not_run), counts.whole - counts.tried)


def _inputs(lab: Lab, minutes: float, say: Say, book: Book) -> Figure:
    cases = bad_inputs.cases()
    tried, crashed, wrong = inputs.campaign(cases, minutes, say, book, _AT_ONCE)
    line = f"inputs {tried} / tracebacks {crashed} / wrong exits {wrong}"
    return Figure(line, crashed + wrong, len(cases) - tried)


def _fuzz(lab: Lab, minutes: float, say: Say, book: Book) -> Figure:
    tried, failed, whole = profiles.fuzz(minutes, say, book, _AT_ONCE)
    line = f"damaged files and answers {tried} / runs with a traceback or a loop {failed}"
    return Figure(line, failed, whole - tried)


def _of_tests(profile: profiles.Profile, lab: Lab, minutes: float, say: Say, book: Book) -> Figure:
    tried, failed, whole = profiles.campaign(profile, minutes, say, book)
    return Figure(f"{profile.name}: tests {tried} / failed {failed}", failed, whole - tried)


_PARTS: dict[str, Callable[[Lab, float, Say, Book], Figure]] = {
    "kills": _kills,
    "faults": _faults,
    "commands": _commands,
    "units": _units,
    "inputs": _inputs,
    "fuzz": _fuzz,
    **{profile.name: partial(_of_tests, profile) for profile in profiles.WHOLE},
}
