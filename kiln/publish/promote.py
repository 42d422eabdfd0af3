"""`promote` and `rollback`: a channel moves to a release that exists; nothing is copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.publish import channel_move, channels, images
from kiln.publish.channel_move import Move, move_everywhere
from kiln.publish.channels import Held
from kiln.publish.deprecation import bring_back
from kiln.publish.gates import Gate, gates
from kiln.publish.line_flags import answering
from kiln.publish.release import Release


@dataclass(frozen=True)
class Promotion:
    """A promotion that was judged, and carried out unless a gate is closed or it was a dry run."""

    release: Release
    gates: tuple[Gate, ...]
    steps: tuple[Move, ...]

    @property
    def allowed(self) -> bool:
        """Whether every gate is open."""
        return all(gate.open for gate in self.gates)


def promote_line(
    line: str,
    to: str,
    settings: Publish,
    target: Target,
    *,
    accept: bool,
    dry_run: bool,
    log_group: str | None,
    why: str,
    say: Callable[[str], None],
) -> Promotion:
    """Promote what the channel before `to` holds; with `accept`, also through gates that a person
    may open. If a gate stays closed, or for a dry run, nothing moves.

    Raises KilnError: exit status 2 for a channel that nothing is promoted to or that comes too
    early, because the one before holds nothing; 1 if an operation failed.
    """
    source = _channel_before(to, settings)
    target = answering(target)
    came = channels.held(target, line, source)
    if came is None or came.release is None:
        raise KilnError(
            f"{source} of {line} holds nothing in {target.region}, and {to} gets what {source} "
            "holds: no channel is skipped",
            hint=_fills(source, line, settings),
        )
    behind = _not_holding(came.release, came, target)
    if behind:
        raise operation_failed(
            f"a move of {source} of {line} was interrupted: it does not hold "
            f"{came.release.ami_name} in {', '.join(behind)}",
            hint="run that publish, promote or rollback again: it continues",
        )
    release = came.release.into(to, channel_move.moved_now(target, "promote", why))
    before = channel_move.held_in(target, list(release.images), line, to)
    present = before.get(target.region)
    judged = gates(release, came, present.release if present else None, settings, target, log_group)
    if accept:
        judged = [
            Gate(gate.name, True, f"{gate.evidence} (accepted)") if _closed(gate) else gate
            for gate in judged
        ]
    promotion = Promotion(release, tuple(judged), ())
    if promotion.allowed:
        channel_move.say_left_out(present, release.ami_name, release.images, say)
    if dry_run or not promotion.allowed:
        return promotion
    bring_back(target, release.images, settings, say)
    steps = move_everywhere(target, release, before, settings.launch_templates, say)
    return Promotion(release, promotion.gates, tuple(steps))


def _closed(gate: Gate) -> bool:
    return gate.acceptable and not gate.open


def _channel_before(to: str, settings: Publish) -> str:
    names = settings.channels
    if to not in names:
        raise KilnError(f"there is no channel {to!r}: {did_you_mean(to, names)}")
    if to == names[0]:
        raise KilnError(
            f"nothing is promoted to {to}, the first channel", hint="./invoke publish fills it"
        )
    return names[names.index(to) - 1]


def _fills(channel: str, line: str, settings: Publish) -> str:
    """The command that lets a channel hold something."""
    if channel == settings.channels[0]:
        return "./invoke publish fills it"
    return f"./invoke promote --line {line} --to {channel} comes before"


@dataclass(frozen=True)
class Rollback:
    """What a channel went back to, and from which AMI. `kept` are the regions, with their AMI, that
    the release was never published to: the channel holds there what it held."""

    release: Release
    former: str
    steps: tuple[Move, ...]
    kept: tuple[tuple[str, str], ...] = ()


def roll_back(
    line: str,
    channel: str,
    settings: Publish,
    target: Target,
    *,
    to: str | None,
    why: str,
    say: Callable[[str], None],
) -> Rollback:
    """Move a channel back, in all regions, to the release before its present one, or to the one
    with the AMI `to`.

    Raises KilnError: exit status 2 for an unknown channel or an AMI that it never held, 1 if there
    is nothing to go back to or it no longer launches.
    """
    if channel not in settings.channels:
        raise KilnError(
            f"there is no channel {channel!r}: {did_you_mean(channel, settings.channels)}"
        )
    target = answering(target)
    now = channels.held(target, line, channel)
    if now is None:
        raise operation_failed(f"{channel} of {line} holds nothing in {target.region}")
    unfinished = None if to else _interrupted(now, target)
    if unfinished:
        say(f"continues the interrupted rollback to {unfinished.ami_name}")
    former = unfinished or _former(line, channel, now, to, target)
    _require_launchable(former, target)
    release = former.into(channel, channel_move.moved_now(target, "rollback", why))
    before = channel_move.held_in(target, list(release.images), line, channel)
    bring_back(target, release.images, settings, say)
    steps = move_everywhere(target, release, before, settings.launch_templates, say)
    present = now.release.images if now.release else {}
    kept = tuple((place, ami) for place, ami in present.items() if place not in release.images)
    for place, ami in kept:
        say(
            f"{place}: {channel} of {line} still holds {ami}: {release.ami_name} was never "
            "published there"
        )
    return Rollback(release, now.image_id, tuple(steps), kept)


def _interrupted(now: Held, target: Target) -> Release | None:
    """The release of a rollback that has not reached every region; None if there is none.

    Without this, the run that follows a killed one would go back one release further.
    """
    release = now.release
    if release is None or release.moved.action != "rollback":
        return None
    return release if _not_holding(release, now, target) else None


def _not_holding(release: Release, channel_of: Held, target: Target) -> list[str]:
    """The regions of a release in which the channel does not hold it."""
    held = channel_move.held_in(target, list(release.images), channel_of.line, channel_of.channel)
    return [
        region
        for region, image_id in release.images.items()
        if region not in held or held[region].image_id != image_id
    ]


def _former(line: str, channel: str, now: Held, to: str | None, target: Target) -> Release:
    """The release to go back to."""
    past = list(channels.past(target, line, channel))
    if to:
        for release in past:
            if to in release.images.values():
                return release
        past_amis = dict.fromkeys(release.images.get(target.region, "") for release in past)
        raise KilnError(
            f"{channel} of {line} never held {to}",
            hint=f"it held: {', '.join(filter(None, past_amis))}",
        )
    came = channels.arrival(past, now.image_id, target.region)
    for release in past[came + 1 :]:
        if release.images.get(target.region, now.image_id) != now.image_id:
            return release
    raise operation_failed(
        f"{channel} of {line} held nothing before {now.image_id} in {target.region}",
        hint=f"./invoke history --line {line} --channel {channel} shows what it held",
    )


def _require_launchable(release: Release, target: Target) -> None:
    wrong = images.not_available(target, release.images)
    if wrong:
        raise operation_failed(
            f"{release.ami_name} no longer launches, so nothing moved: {'; '.join(wrong)}",
            hint="name another one with --to ami-…: ./invoke history shows them",
        )
