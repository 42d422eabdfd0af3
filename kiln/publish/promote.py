"""`promote` and `rollback`: a channel moves to a release that exists; nothing is copied.

`publish` moves a channel in the same way, and the launch templates that follow it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import VERIFIED, says_verified
from kiln.base.vocabulary import as_time, utc_now
from kiln.cloud import aws
from kiln.cloud.images import Image, find_image
from kiln.cloud.target import Target
from kiln.matrix.model import LaunchTemplate
from kiln.publish import channels
from kiln.publish.channels import Action, Held, Moved, Release
from kiln.publish.copies import restore_images
from kiln.publish.lines import Line, require_channel
from kiln.publish.provenance import public_key, verify_image
from kiln.publish.regions import Say, answering, in_regions

# How often a channel is read until it holds what was written. SSM answers before it has looked the
# AMI up, and if it does not find it, it leaves the parameter as it was.
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html (DataType)
_READS = 30
_VERSIONS = "LaunchTemplateVersions"


@dataclass(frozen=True)
class Move:
    """Result of a move in a region. `changed` is False where the channel held the image already."""

    line: str
    channel: str
    region: str
    ami_id: str
    changed: bool
    before: str | None
    templates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Moves:
    """The release that a channel has come to hold, and its move in each region.

    `kept` are the regions, with their AMI, that the release was never published to: the channel
    holds there what it held. `changed` is what differs gravely from the release before.
    """

    release: Release
    steps: tuple[Move, ...]
    kept: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


def held_in(target: Target, regions: Iterable[str], line: str, channel: str) -> dict[str, Held]:
    """Return what a channel holds in each region in which it holds something."""
    held = in_regions(target, regions, lambda there: channels.held(there, line, channel))
    return {region: item for region, item in held.items() if item is not None}


def skipped_regions(held: Held | None, new: Release, say: Say) -> dict[str, str]:
    """Return the regions, each said, that keep their present AMI because the new release is not
    published there.

    `held` is what the channel holds in the target's region; others may not answer any more.
    """
    present = held.release.images if held and held.release else {}
    kept = {region: ami_id for region, ami_id in present.items() if region not in new.images}
    for region, ami_id in kept.items():
        keeps = f"{new.channel} of {new.line} keeps {ami_id}"
        say(f"{region}: {keeps}: {new.ami_name} is not published there")
    return kept


def moved_now(target: Target, action: Action, why: str) -> Moved:
    """Return a move at this moment, by whom the credentials belong to."""
    return Moved(at=as_time(utc_now()), by=aws.identity(target), action=action, why=why)


def move_everywhere(
    target: Target, release: Release, before: Mapping[str, Held], line: Line, say: Say
) -> list[Move]:
    """Let the release's channel hold it in each of its regions, one after the other.

    `before` is what the channel held when the move was decided. An error says which regions have
    moved; a second run continues.
    """
    done: list[Move] = []
    moved: list[str] = []
    regions = list(dict.fromkeys([target.region, *release.images]))
    for region in regions:
        there, held, ami_id = target.in_region(region), before.get(region), release.images[region]
        try:
            changed = move_one(there, release, held, line.tags)
            moved.append(region)
            followed = tuple(_follow(there, release, line.settings.launch_templates))
        except KilnError as error:
            left = ", ".join(regions[len(moved) :]) or "none"
            raise operation_failed(
                f"{error.message}\n  moved to {release.ami_name}: {', '.join(moved) or 'none'}; "
                f"not: {left}",
                hint="; ".join(filter(None, [error.hint, "run it again to go on"])),
            ) from None
        was = held.image_id if held else None
        done.append(Move(line.name, release.channel, region, ami_id, changed, was, followed))
        if changed:
            since = f", before {was}" if was else ""
            say(f"{release.channel} of {line.name} in {region}: {ami_id}{since}")
    return done


def move_one(
    target: Target, release: Release, before: Held | None, tags: Mapping[str, str]
) -> bool:
    """Let the release's channel hold its image of the target's region; False if it did already.

    `before` is what the channel held when the move was decided. If somebody else has moved it
    since, nothing is overwritten.
    """
    line, channel, region = release.line, release.channel, target.region
    image_id = release.images[region]
    now = channels.held(target, line, channel)
    if now and now.image_id == image_id and now.release and now.release.images == release.images:
        return False
    version = now.version if now else 0
    if version != (before.version if before else 0):
        raise _moved_meanwhile(target, release, now)
    with aws.explained(f"{channel} of {line} could not be moved in {region}"):
        # First, so that an id never stands without its description.
        name = channels.release_parameter(line, channel)
        channels.put_parameter(target, tags, name, release.to_json())
        if now and now.image_id == image_id:
            return True
        name, kind = channels.image_parameter(line, channel), {"DataType": "aws:ec2:image"}
        try:
            written = channels.put_parameter(target, tags, name, image_id, new=now is None, **kind)
        except aws.ssm(target).exceptions.ParameterAlreadyExists:
            raise _moved_meanwhile(target, release, channels.held(target, line, channel)) from None
    if written != version + 1:
        raise operation_failed(
            f"two moved {channel} of {line} in {region} at once: it holds {image_id} now"
        )
    _require_held(target, release, written)
    return True


def _require_held(target: Target, release: Release, version: int) -> None:
    """Wait until a channel holds the image of its region, written as that version."""
    line, channel, image_id = release.line, release.channel, release.images[target.region]
    for _ in range(_READS):
        now = channels.held(target, line, channel)
        if now and now.image_id == image_id:
            return
        if now and now.version >= version:
            raise _moved_meanwhile(target, release, now)
        time.sleep(target.poll_seconds)
    raise operation_failed(
        f"SSM has taken {image_id} for {channel} of {line} in {target.region}, and does not show "
        f"it: the channel holds {now.image_id if now else 'nothing'}",
        hint="ec2:DescribeImages must show it to these credentials",
    )


def _moved_meanwhile(target: Target, release: Release, now: Held | None) -> Exception:
    line, channel = release.line, release.channel
    holds = f"it holds {now.image_id}" if now else "it is gone"
    return operation_failed(
        f"{channel} of {line} was changed by somebody else in {target.region} meanwhile: {holds}",
        hint=f"./invoke history --line {line} --channel {channel} says who; then run it again",
    )


def _follow(target: Target, release: Release, templates: Sequence[LaunchTemplate]) -> Iterator[str]:
    """Let the templates of the release's channel launch its image of the target's region by
    default; yield the names and versions of those that were changed."""
    for template in templates:
        here = not template.regions or target.region in template.regions
        if template.channel == release.channel and here:
            what = f"the launch template {template.name} could not follow in {target.region}"
            with aws.explained(what):
                version = _default_version(target, release, template.name)
            if version:
                yield f"{template.name} version {version}"


def _default_version(target: Target, release: Release, name: str) -> int:
    """Make the version with the release's image the template's default; 0 if it is that already.

    A version with that image is used again, so that a rollback restores the former default.
    """
    ec2, image_id = aws.ec2(target), release.images[target.region]
    versions = list(
        aws.paginated(ec2, "describe_launch_template_versions", _VERSIONS, LaunchTemplateName=name)
    )
    default = next(version for version in versions if version["DefaultVersion"])
    # With any other version, settings that the owner has changed since would be lost.
    wanted = {**default["LaunchTemplateData"], "ImageId": image_id}
    if default["LaunchTemplateData"] == wanted:
        return 0
    same = [each["VersionNumber"] for each in versions if each["LaunchTemplateData"] == wanted]
    if same:
        number = same[-1]
    else:
        about = f"{release.line} {release.channel} {image_id} {release.run_id}"
        made = ec2.create_launch_template_version(
            LaunchTemplateName=name,
            SourceVersion=str(default["VersionNumber"]),
            VersionDescription=about[:255],
            LaunchTemplateData={"ImageId": image_id},
        )
        number = made["LaunchTemplateVersion"]["VersionNumber"]
    ec2.modify_launch_template(LaunchTemplateName=name, DefaultVersion=str(number))
    return int(number)


# Promotion


@dataclass(frozen=True)
class Gate:
    """Condition of a promotion, with the evidence. A person may open an `acceptable` one."""

    name: str
    open: bool
    evidence: str
    acceptable: bool = False


@dataclass(frozen=True)
class Promotion:
    """A promotion that was judged, and carried out unless a gate is closed or it was a dry run."""

    release: Release
    gates: tuple[Gate, ...]
    steps: tuple[Move, ...] = ()

    @property
    def allowed(self) -> bool:
        """True if every gate is open."""
        return all(gate.open for gate in self.gates)


def promote_line(
    line: Line,
    to: str,
    target: Target,
    *,
    accept: bool = False,
    dry_run: bool = False,
    why: str = "",
    say: Say,
) -> Promotion:
    """Promote what the channel before `to` holds; with `accept`, also through gates that a person
    may open. If a gate stays closed, or for a dry run, nothing moves."""
    names = line.settings.channels
    if require_channel(to, line.settings) == names[0]:
        raise KilnError(
            f"nothing is promoted to {to}, the first channel: ./invoke publish fills it"
        )
    source = names[names.index(to) - 1]
    target = answering(target)
    came = channels.held(target, line.name, source)
    if came is None or came.release is None:
        how = f"promote --line {line.name} --to {source}" if source != names[0] else "publish"
        raise KilnError(
            f"{source} of {line.name}, which {to} follows, holds nothing in {target.region}",
            hint=f"./invoke {how} comes before",
        )
    if behind := _not_holding(came.release, target):
        raise operation_failed(
            f"a move of {source} of {line.name} was interrupted: it does not hold "
            f"{came.release.ami_name} in {', '.join(behind)}; run that again, it continues"
        )
    release = came.release.into(to, moved_now(target, "promote", why))
    before = held_in(target, release.images, line.name, to)
    present = before.get(target.region)
    gates = _judge(release, came, present.release if present else None, line, target, accept)
    promotion = Promotion(release, tuple(gates))
    if promotion.allowed:
        skipped_regions(present, release, say)
    if dry_run or not promotion.allowed:
        return promotion
    restore_images(target, release.images, line.settings, say)
    steps = move_everywhere(target, release, before, line, say)
    return replace(promotion, steps=tuple(steps))


def _judge(
    release: Release, came: Held, present: Release | None, line: Line, target: Target, accept: bool
) -> list[Gate]:
    """Return all gates of a promotion of `release`, which is in the channel before since `came`;
    `present` is what the channel holds now."""
    images = _images(release, target)
    gone = _not_available(release, images)
    home = images[target.region]
    verdict = home.tags.get(VERIFIED, "") if home else ""
    hours = (utc_now() - came.since).total_seconds() / 3600
    needed = line.settings.soak_hours.get(release.channel, 0)
    differs = "; ".join(grave(present, release)) if present else ""
    against = f"nothing grave against {present.ami_name}" if present else ""
    difference = differs or against or "the channel holds nothing yet"
    if differs and accept:
        difference += " (accepted)"
    gates = [
        Gate("launches", not gone, "; ".join(gone) or f"available in {', '.join(images)}"),
        Gate("verified", says_verified(verdict), f"{VERIFIED} says {verdict or 'nothing'}"),
        Gate("soak", hours >= needed, f"{hours:.1f} h of {needed:g} h in the channel before"),
        Gate("difference", accept or not differs, difference, acceptable=True),
    ]
    if line.settings.sign:
        key = public_key(line.settings.sign, target)
        statements = in_regions(
            target, images, lambda there: verify_image(there, release.images[there.region], key)
        )
        wrong = "; ".join(
            f"{statement.ami_id} in {region}: {reason}"
            for region, statement in statements.items()
            for reason in statement.wrong
        )
        gates.append(Gate("signed", not wrong, wrong or f"in {', '.join(images)}"))
    return gates


def _images(release: Release, target: Target) -> dict[str, Image | None]:
    """Return the release's AMI of each region; None where it is gone."""
    images = release.images
    return in_regions(target, images, lambda there: find_image(there, images[there.region]))


def _not_available(release: Release, images: dict[str, Image | None]) -> list[str]:
    """Return the AMIs that cannot be launched, in words."""
    states = {region: image.state if image else "gone" for region, image in images.items()}
    return [
        f"{release.images[region]} in {region} is {state}"
        for region, state in states.items()
        if state != "available"
    ]


def grave(old: Release, new: Release) -> Iterator[str]:
    """Yield what users of the channel must know before it changes under them: another kernel or
    glibc, and another branch of driver or CUDA."""
    for name in ("driver", "kernel", "cuda", "glibc"):
        before, after = getattr(old.installed, name) or "", getattr(new.installed, name) or ""
        parts = 1 if name in ("driver", "cuda") else None
        if before.split(".")[:parts] != after.split(".")[:parts]:
            yield f"{name} {before or 'none'} → {after or 'none'}"


# Rollback


def roll_back(
    line: Line, channel: str, target: Target, *, to: str | None = None, why: str = "", say: Say
) -> Moves:
    """Move a channel back, in all regions, to the release before its present one, or to the one
    with the AMI `to`."""
    require_channel(channel, line.settings)
    target = answering(target)
    now = channels.held(target, line.name, channel)
    if now is None:
        raise operation_failed(
            f"nothing to roll back: {channel} of {line.name} is empty in {target.region}"
        )
    former, present = None, now.release
    # Otherwise the run that follows a killed one would go back one release further.
    if to is None and present and present.moved.action == "rollback":
        former = present if _not_holding(present, target) else None
    if former:
        say(f"continues the interrupted rollback to {former.ami_name}")
    former = former or _former(now, to, target)
    if gone := _not_available(former, _images(former, target)):
        raise operation_failed(
            f"{former.ami_name} no longer launches, so nothing moved: {'; '.join(gone)}",
            hint="name another one with --to ami-…: ./invoke history shows them",
        )
    release = former.into(channel, moved_now(target, "rollback", why))
    before = held_in(target, release.images, line.name, channel)
    restore_images(target, release.images, line.settings, say)
    steps = move_everywhere(target, release, before, line, say)
    return Moves(release, tuple(steps), skipped_regions(now, release, say))


def _not_holding(release: Release, target: Target) -> list[str]:
    """Return the regions of a release in which its channel does not hold it."""
    held = held_in(target, release.images, release.line, release.channel)
    return [
        region
        for region, image_id in release.images.items()
        if region not in held or held[region].image_id != image_id
    ]


def _former(now: Held, to: str | None, target: Target) -> Release:
    """Return the release to go back to."""
    line, channel, past = now.line, now.channel, list(channels.past(target, now.line, now.channel))
    if to:
        for release in past:
            if to in release.images.values():
                return release
        amis = dict.fromkeys(release.images.get(target.region, "") for release in past)
        held = ", ".join(filter(None, amis))
        raise KilnError(f"{channel} of {line} never held {to}", hint=f"it held: {held}")
    came = channels.arrival(past, now.image_id, target.region)
    for release in past[came + 1 :]:
        if release.images.get(target.region, now.image_id) != now.image_id:
            return release
    raise operation_failed(
        f"{channel} of {line} held nothing before {now.image_id} in {target.region}"
    )
