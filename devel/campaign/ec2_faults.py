"""Makes every EC2 action that a build calls fail, once and for good, with each kind of error.

Clean: the build ends in time, with a message instead of a traceback, and what it may have had to
leave behind is removed by the next build.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from devel.campaign.world import Ended, World, deadline, inventory, spread
from lab import control
from lab.faults import LAUNCH

# One of each kind: forbidden, expired, throttled, EC2's own failure.
CODES = ("UnauthorizedOperation", "ExpiredToken", "RequestLimitExceeded", "InternalError")
FOR_GOOD = 100_000


@dataclass(frozen=True)
class Scenario:
    """The requests of an action that fail: the first so many, with this code."""

    action: str
    code: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.action} answers {self.code} {'once' if self.times == 1 else 'for good'}"


def scenarios(actions: list[str]) -> list[Scenario]:
    """Every action × every fault."""
    found = [
        Scenario(action, code, times)
        for action in sorted(set(actions))
        for code in CODES
        for times in (1, FOR_GOOD)
    ]
    found += [Scenario("RunInstances", "InsufficientInstanceCapacity", FOR_GOOD)]
    return [*found, *(Scenario("boot", code) for code in sorted(LAUNCH))]


def campaign(world: World, minutes: float, say: Callable[[str], None]) -> tuple[int, int, int]:
    """Try as many scenarios as the minutes allow; returns those tried, the clean ones, all."""
    until = deadline(minutes)
    whole = scenarios(_actions(world))
    tried = clean = 0
    for index in spread(len(whole), random.random()):
        if time.monotonic() > until:
            break
        ended = fail(world, whole[index])
        tried += 1
        clean += not ended.left
        if ended.left:
            say(f"NOT CLEAN {whole[index]}: {'; '.join(ended.left)}\n{ended.text}")
    return tried, clean, len(whole)


def fail(world: World, scenario: Scenario) -> Ended:
    """A build with these failing requests; `left` is what is wrong with how it ended."""
    home = world.home()
    before = inventory(world.ec2)
    control.call(world.lab, "faults/clear")
    control.order_fault(world.lab, action=scenario.action, code=scenario.code, times=scenario.times)
    ended = world.end(world.start(home))
    control.call(world.lab, "faults/clear")
    if ended.status is None:
        ended.left.append("it did not end")
    elif ended.status not in (0, 1):
        ended.left.append(f"exit status {ended.status}")
    elif ended.status == 1 and "error: " not in ended.text and "left: " not in ended.text:
        ended.left.append("no message")
    if ended.status != 0:
        ended.text += world.next_build(home)
    if "Traceback" in ended.text:
        ended.left.append("a traceback")
    ended.left += world.traces(home, before)
    world.forget_images(before)
    return ended


def _actions(world: World) -> list[str]:
    """The EC2 actions of a build that ends well, and of one whose AMI is removed again."""
    home = world.home()
    before = inventory(world.ec2)
    control.call(world.lab, "faults/clear")
    world.end(world.start(home), patience=600)
    actions = world.calls()
    world.forget_images(before)
    return [*actions, "DeregisterImage", "DeleteSnapshot"]
