"""Makes every EC2 action that a build calls fail, once and for good, with each kind of error.

Clean: the build ends in time, or says what it waits for and ends once EC2 answers again; with a
message instead of a traceback; and what it may have had to leave behind is removed by the next one.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from devel.campaign.book import Book
from devel.campaign.kills import measured, steps
from devel.campaign.testbed import Build, Ended, Testbed, deadline, each, inventory
from lab import control
from lab.faults import LAUNCH

# Forbidden, expired: a build gives up.
FINAL = ("UnauthorizedOperation", "ExpiredToken")
# Throttled, EC2's own failure: a build asks again.
PASSING = ("RequestLimitExceeded", "InternalError")
FOR_GOOD = 100_000
# A build that ends well does not call these.
_OF_CLEANING_UP = ("DeregisterImage", "DeleteSnapshot")
_PATIENCE = 400.0
# What EC2 cannot answer at the moment a build asks for again, for up to an hour: after so many
# seconds it can.
_WAITS = 100.0


@dataclass(frozen=True)
class Scenario:
    """The requests of an action that fail: the first so many, with this code."""

    action: str
    code: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.action} answers {self.code} {'once' if self.times == 1 else 'for good'}"


def scenarios(actions: Sequence[str]) -> list[Scenario]:
    """Every action × every fault."""
    planned = [
        Scenario(action, code, times)
        for action in sorted({*actions, *_OF_CLEANING_UP})
        for code in (*FINAL, *PASSING)
        for times in (1, FOR_GOOD)
    ]
    planned += [Scenario("RunInstances", "InsufficientInstanceCapacity", FOR_GOOD)]
    return [*planned, *(Scenario("boot", code) for code in sorted(LAUNCH))]


def campaign(
    places: Sequence[Testbed], minutes: float, say: Callable[[str], None], book: Book
) -> tuple[int, int, int]:
    """Try as many scenarios as the minutes allow; returns those tried, those not clean, all."""
    until = deadline(minutes)
    _, actions = measured(places[0])
    whole = {str(scenario): scenario for scenario in scenarios(actions)}
    left = book.begin(whole)
    for code in PASSING:
        # A build must get over each of them: all in one build, and one by one only if it did not.
        together = [
            name
            for name in left
            if (whole[name].code, whole[name].times) == (code, 1) and whole[name].action in actions
        ]
        if together and fail(places[0], [whole[name] for name in together]).status == 0:
            left = [name for name in left if name not in together]
            for name in together:
                book.note(name)

    def attempt(place: Testbed, name: str) -> None:
        ended = fail(place, [whole[name]])
        if not ended.reached:
            say(f"NOT TRIED {name}: the build did not call it")
            return
        if ended.left:
            say(f"NOT CLEAN {name}: {'; '.join(ended.left)}\n{ended.text}")
        book.note(name, "; ".join(ended.left) + "\n" + ended.text if ended.left else "")

    each(places, left, until, attempt)
    return book.tried(whole), book.bad(whole), len(whole)


def fail(testbed: Testbed, together: Sequence[Scenario]) -> Ended:
    """A build with these failing requests; `left` is what is wrong with how it ended."""
    home = testbed.home()
    before = inventory(testbed.ec2)
    control.call(testbed.lab, "faults/clear")
    for fault in together:
        control.order_fault(testbed.lab, action=fault.action, code=fault.code, times=fault.times)
    build = testbed.start(home)
    if any(fault.action in _OF_CLEANING_UP for fault in together):
        while build.goes_on() and "RunInstances 2" not in steps(testbed.calls()):
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            build.signal(signal.SIGTERM)
    waited = all(fault.code in PASSING and fault.times > 1 for fault in together)
    waited = waited and not _ends_or_says(build, _WAITS)
    called = {*testbed.calls(), "boot"}
    if waited:
        # EC2 answers again.
        control.call(testbed.lab, "faults/clear")
    ended = testbed.end(build, _PATIENCE)
    if waited and "waiting for " not in ended.text:
        ended.left.append("it asked again without a word")
    called |= set(testbed.calls())
    ended.reached = all(fault.action in called for fault in together)
    control.call(testbed.lab, "faults/clear")
    if ended.status is None:
        ended.left.append("it did not end")
    elif ended.status not in (0, 1):
        ended.left.append(f"exit status {ended.status}")
    elif ended.status == 1 and "error: " not in ended.text and "left: " not in ended.text:
        ended.left.append("no message")
    if ended.status != 0 and testbed.traces(home, before):
        ended.text += testbed.next_build(home)
    if "Traceback" in ended.text:
        ended.left.append("a traceback")
    ended.left += testbed.traces(home, before)
    testbed.forget_images(before)
    return ended


def _ends_or_says(build: Build, seconds: float) -> bool:
    """Whether a build ends in that time. One that says what it waits for is not waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and "waiting for " not in build.text():
        with contextlib.suppress(subprocess.TimeoutExpired):
            build.process.wait(0.5)
            return True
    return False
