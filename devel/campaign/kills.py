"""Ends a build at every second and at every call to EC2, with each signal: nothing may be left.

SIGINT and SIGTERM clean up themselves. What SIGKILL leaves, the next build of the checkout removes.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from devel.campaign.world import Ended, World, deadline, inventory, spread
from lab import control

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_STEP = 0.5


@dataclass(frozen=True)
class Point:
    """A moment of a build: so many seconds, or so many calls to EC2, after its beginning."""

    number: signal.Signals
    seconds: float | None = None
    calls: int | None = None

    def __str__(self) -> str:
        moment = f"call {self.calls}" if self.calls else f"{self.seconds:.1f} s"
        return f"{self.number.name} at {moment}"


def points(seconds: float, calls: int) -> list[Point]:
    """All points of a build that takes so long and makes so many calls."""
    moments = [Point(signal.SIGINT, seconds=step * _STEP) for step in range(int(seconds / _STEP))]
    moments += [Point(signal.SIGINT, calls=call + 1) for call in range(calls)]
    return [
        Point(number, seconds=moment.seconds, calls=moment.calls)
        for moment in moments
        for number in SIGNALS
    ]


def campaign(world: World, minutes: float, say: Callable[[str], None]) -> tuple[int, int, int]:
    """End builds at as many points as the minutes allow; returns points tried, leaks, all."""
    until = deadline(minutes)
    whole = points(*_measured(world))
    tried = leaks = 0
    for index in spread(len(whole), random.random()):
        if time.monotonic() > until:
            break
        point = whole[index]
        ended = kill(world, point)
        tried += 1
        if ended.left:
            leaks += 1
            say(f"LEAK {point}: {'; '.join(ended.left)}\n{ended.text}")
    return tried, leaks, len(whole)


def kill(world: World, point: Point) -> Ended:
    """End a build at a point; what is then left, after the next build in the case of SIGKILL."""
    home = world.home()
    before = inventory(world.ec2)
    control.call(world.lab, "faults/clear")
    process = world.start(home)
    began = time.monotonic()
    while process.poll() is None:
        if point.calls is not None and len(world.calls()) >= point.calls:
            break
        if point.seconds is not None and time.monotonic() - began >= point.seconds:
            break
        time.sleep(0.005)
    if process.poll() is None:
        os.killpg(process.pid, point.number)
    ended = world.end(process)
    if ended.status is None:
        ended.left.append("it did not end")
    if point.number is signal.SIGKILL or ended.status is None:
        ended.text += world.next_build(home)
    elif ended.status not in (0, 1, -signal.SIGINT, -signal.SIGTERM, 130, 143):
        ended.left.append(f"exit status {ended.status}")
    if "Traceback" in ended.text:
        ended.left.append("a traceback")
    ended.left += world.traces(home, before)
    world.forget_images(before)
    return ended


def _measured(world: World) -> tuple[float, int]:
    """The seconds and the calls to EC2 of a build that nobody ends."""
    home = world.home()
    before = inventory(world.ec2)
    control.call(world.lab, "faults/clear")
    began = time.monotonic()
    ended = world.end(world.start(home), patience=600)
    seconds, calls = time.monotonic() - began, len(world.calls())
    if ended.status != 0:
        raise RuntimeError(f"the campaign's build fails without an attack:\n{ended.text}")
    world.forget_images(before)
    return seconds, calls
