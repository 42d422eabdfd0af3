"""Ends a build all along its time and at every call to EC2 that matters: nothing may be left.

SIGINT and SIGTERM clean up themselves, by one handler. What SIGKILL leaves, the next build of the
checkout removes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from devel.campaign.book import Book
from devel.campaign.testbed import Ended, Testbed, deadline, each, inventory
from lab import control

# Between calls: the local work of a build. They divide its time evenly.
_MOMENTS = 12
# Builds for a point: one may be faster than the one that was measured, or than a look at its calls.
_TRIES = 4
_SOFT = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Point:
    """A moment of a build: a part of its time, or a step of what it asks EC2 for."""

    number: signal.Signals
    part: int = 0
    step: str = ""

    def __str__(self) -> str:
        return f"{self.number.name} at {self.step or f'{self.part}/{_MOMENTS} of the build'}"


def steps(calls: Sequence[str]) -> list[str]:
    """The calls that change something, and the first of each kind of question after each of them.

    A build asks some questions again and again until the answer is another one: how often depends
    on the machine's speed.
    """
    numbers: dict[str, int] = {}
    actions: set[str] = set()
    names = []
    last = "the beginning"
    for action in calls:
        if action.startswith(("Describe", "Get")):
            if action not in actions:
                names.append(f"{action} after {last}")
            actions.add(action)
            continue
        numbers[action] = numbers.get(action, 0) + 1
        last = f"{action} {numbers[action]}"
        actions = set()
        names.append(last)
    return names


def points(calls: Sequence[str]) -> list[Point]:
    """Each moment of a build that makes these calls, with SIGKILL and with SIGINT or SIGTERM."""
    moments = []
    for index, step in enumerate(dict.fromkeys(steps(calls))):
        moments += [Point(_SOFT[index % 2], step=step), Point(signal.SIGKILL, step=step)]
    for part in range(_MOMENTS):
        moments += [Point(_SOFT[part % 2], part=part), Point(signal.SIGKILL, part=part)]
    return moments


def campaign(
    places: Sequence[Testbed], minutes: float, say: Callable[[str], None], book: Book
) -> tuple[int, int, int]:
    """End builds at as many points as the minutes allow; returns points tried, leaks, all."""
    until = deadline(minutes)
    # All at once, as the builds that are ended run.
    with ThreadPoolExecutor(len(places)) as pool:
        timings = list(pool.map(measured, places))
    seconds, calls = max(seconds for seconds, _ in timings), timings[0][1]
    whole = {str(point): point for point in points(calls)}

    def attempt(place: Testbed, name: str) -> None:
        lasts = seconds
        for _ in range(_TRIES):
            ended = kill(place, whole[name], lasts)
            if ended.reached:
                break
            lasts = min(lasts, ended.seconds)
        if not ended.reached:
            say(f"NOT TRIED {name}: the build ended before it")
            return
        if ended.left:
            say(f"LEAK {name}: {'; '.join(ended.left)}\n{ended.text}")
        book.note(name, "; ".join(ended.left) + "\n" + ended.text if ended.left else "")

    each(places, book.begin(whole), until, attempt)
    return book.tried(whole), book.bad(whole), len(whole)


def kill(testbed: Testbed, point: Point, seconds: float) -> Ended:
    """End a build of so many seconds at a point; what is then left.

    What SIGKILL left is looked for after the next build.
    """
    home = testbed.home()
    before = inventory(testbed.ec2)
    control.call(testbed.lab, "faults/clear")
    build = testbed.start(home)
    began = time.monotonic()
    while build.goes_on():
        if point.step and point.step in steps(testbed.calls()):
            break
        if not point.step and time.monotonic() - began >= seconds * point.part / _MOMENTS:
            break
        # Each look is a signed request: more of them cost more than the build.
        time.sleep(0.02)
    reached = build.goes_on()
    if reached:
        build.signal(point.number)
    lasted = time.monotonic() - began
    ended = testbed.end(build)
    ended.reached, ended.seconds = reached, lasted
    if ended.status is None:
        ended.left.append("it did not end")
    if point.number is signal.SIGKILL or ended.status is None:
        if testbed.traces(home, before):
            ended.text += testbed.next_build(home)
    elif ended.status not in (0, 1, -signal.SIGINT, -signal.SIGTERM, 130, 143):
        ended.left.append(f"exit status {ended.status}")
    if "Traceback" in ended.text:
        ended.left.append("a traceback")
    ended.left += testbed.traces(home, before)
    testbed.forget_images(before)
    return ended


def measured(testbed: Testbed) -> tuple[float, list[str]]:
    """The seconds and the calls to EC2 of a build that nobody ends.

    Raises RuntimeError if it does not end well: then no attack would show anything.
    """
    home = testbed.home()
    before = inventory(testbed.ec2)
    control.call(testbed.lab, "faults/clear")
    began = time.monotonic()
    ended = testbed.end(testbed.start(home), patience=600)
    seconds, calls = time.monotonic() - began, testbed.calls()
    if ended.status != 0:
        raise RuntimeError(f"the campaign's build fails without an attack:\n{ended.text}")
    testbed.forget_images(before)
    return seconds, calls
