"""Moves a channel to a release in all its regions, and the launch templates that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from kiln.base.errors import KilnError, operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.publishing import LaunchTemplate
from kiln.publish import channels
from kiln.publish.channels import Held
from kiln.publish.launch_templates import follow
from kiln.publish.lock import line_locked
from kiln.publish.release import Action, Moved, Release

Answer = TypeVar("Answer")
# As many regions as AWS enables in an account by default.
_AT_ONCE = 17


@dataclass(frozen=True)
class Move:
    """What a move did in a region. `changed` is False where the channel held the image already."""

    line: str
    channel: str
    region: str
    ami_id: str
    changed: bool
    before: str | None
    templates: tuple[str, ...] = ()


def in_regions(regions: Sequence[str], ask: Callable[[str], Answer]) -> dict[str, Answer]:
    """`ask` for each region, side by side. Raises KilnError (exit status 1) that names every
    region in which it failed."""

    def answer_or_error(region: str) -> Answer | KilnError:
        try:
            return ask(region)
        except KilnError as error:
            return error

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        answers = dict(zip(regions, pool.map(answer_or_error, regions), strict=True))
    failed = [answer for answer in answers.values() if isinstance(answer, KilnError)]
    if failed:
        hints = dict.fromkeys(error.hint for error in failed if error.hint)
        raise KilnError(
            "\n".join(dict.fromkeys(error.message for error in failed)),
            hint="; ".join(hints),
            exit_status=min(error.exit_status for error in failed),
        )
    return {
        region: answer for region, answer in answers.items() if not isinstance(answer, KilnError)
    }


def held_in(target: Target, regions: Sequence[str], line: str, channel: str) -> dict[str, Held]:
    """What a channel holds in each region in which it holds something."""
    found = in_regions(
        regions, lambda region: channels.held(target.in_region(region), line, channel)
    )
    return {region: one for region, one in found.items() if one is not None}


def moved_now(target: Target, action: Action, why: str) -> Moved:
    """A move at this moment, by whom the credentials belong to."""
    return Moved(
        at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        by=aws.identity(target),
        action=action,
        why=why,
    )


def move_everywhere(
    target: Target,
    release: Release,
    before: Mapping[str, Held],
    templates: Sequence[LaunchTemplate],
    say: Callable[[str], None],
) -> list[Move]:
    """Let the channel hold the release in each of its regions, one after the other.

    `before` is what it held when the move was decided. Raises KilnError (exit status 1) if a
    region refuses; the message says which regions have moved. A second run goes on.
    """
    home = target.region
    regions = [home, *(region for region in release.images if region != home)]
    done: list[Move] = []
    with line_locked(target, release.line):
        for region in regions:
            there = target.in_region(region)
            held = before.get(region)
            try:
                changed = channels.move(there, release, held)
                followed = follow(there, release, templates)
            except KilnError as error:
                raise _halfway(error, release, done, regions) from None
            step = Move(
                release.line,
                release.channel,
                region,
                release.images[region],
                changed,
                held.image_id if held else None,
                followed,
            )
            done.append(step)
            if changed:
                was = f", before {step.before}" if step.before else ""
                say(f"{release.channel} of {release.line} in {region}: {step.ami_id}{was}")
    return done


def _halfway(
    error: KilnError, release: Release, done: Sequence[Move], regions: Sequence[str]
) -> KilnError:
    moved = ", ".join(step.region for step in done) or "none"
    left = ", ".join(regions[len(done) :])
    return operation_failed(
        f"{error.message}\n  moved to {release.ami_name}: {moved}; not: {left}",
        hint="; ".join(filter(None, [error.hint, "run it again to go on"])),
    )
