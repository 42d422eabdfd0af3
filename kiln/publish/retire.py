"""`retire`: AMIs that no channel holds and nothing uses go in steps: deprecated, disabled,
deregistered with their snapshots. A step waits its days from the step before, a day at least, and
nothing happens without `apply`."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from kiln.base import vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import PROVENANCE, RECIPE, RETIRING, RUN_ID
from kiln.base.times import as_time, read_time, utc_now
from kiln.cloud import aws
from kiln.cloud.images import Image, find_image, own_images
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.publish import channels, sharing
from kiln.publish.channels import Held
from kiln.publish.own_images import users_of
from kiln.publish.provenance import statement_parameter, subject_name
from kiln.publish.regions import in_regions
from kiln.publish.release import Release
from kiln.publish.usage import used_elsewhere

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import DeregisterImageResultTypeDef

RetireStep = Literal["deprecate", "disable", "deregister"]
_KEEP = 2
# A launch in the first hour is the verification; one in the last days is a use.
_VERIFYING = timedelta(hours=1)
_LATELY = timedelta(days=7)


@dataclass(frozen=True)
class Going:
    """The next step of an AMI, and why. `error` is why it could not be done; "" otherwise."""

    ami_id: str
    region: str
    step: RetireStep
    why: str
    error: str = ""


@dataclass(frozen=True)
class Kept:
    """An AMI that stays, and why."""

    ami_id: str
    region: str
    why: str


@dataclass(frozen=True)
class Retirement:
    """What would go, what stays, and who may use what though the matrix does not declare it."""

    would: tuple[Going, ...]
    kept: tuple[Kept, ...]
    opened: tuple[str, ...] = ()


def plan_retirement(
    target: Target,
    regions: Sequence[str],
    settings: Mapping[str, Publish],
    *,
    ask: bool = False,
) -> Retirement:
    """The next step of every AMI of AMI Kiln in these regions, the target's first.

    `settings` are those of each line and row of the matrix; what it no longer has gets those of
    "", the defaults.
    An AMI that others may use stays until EC2's report says that nobody does, whatever the matrix
    says: it may have dropped the line or stopped sharing it. With `ask`, EC2 is asked for a report,
    if there is none.
    Raises KilnError (exit status 1) if a region does not answer: then nobody knows what is unused.
    """
    everywhere = list(dict.fromkeys([target.region, *regions]))
    images = in_regions(everywhere, lambda region: own_images(target.in_region(region)))
    # Each region's own: a line may be baked in another region than the target's.
    moves = in_regions(everywhere, lambda region: _moves(target.in_region(region)))
    every_move = [move for region in everywhere for move in moves[region]]
    held = {
        **_rollbacks(every_move, settings),
        **{
            (holding.region, holding.image_id): f"{holding.channel} of {holding.line} holds it"
            for holding, _ in every_move
        },
    }
    users = in_regions(
        everywhere,
        lambda region: users_of(
            target.in_region(region), [image.ami_id for image in images[region]]
        ),
    )
    opened = in_regions(
        everywhere,
        lambda region: {
            image.ami_id: sharing.permissions(
                target.in_region(region), image.ami_id, image.snapshots
            )
            for image in images[region]
        },
    )
    going: list[Going] = []
    kept: list[Kept] = []
    beyond: list[str] = []
    for region in everywhere:
        there = target.in_region(region)
        for image in sorted(images[region], key=lambda own: own.created):
            chosen, has = _settings_of(image, settings), opened[region][image.ami_id]
            beyond += [f"{region}: {what}" for what in sharing.undeclared(has, chosen.share)]
            guard = (
                held.get((region, image.ami_id))
                or _guarded(image, users[region].get(image.ami_id, []))
                or _not_yet(image, chosen)
                or _launched_lately(image)
                or (used_elsewhere(there, image.ami_id, ask=ask) if any(has.values()) else "")
            )
            if guard:
                kept.append(Kept(image.ami_id, region, guard))
            else:
                going.append(_next(image))
    return Retirement(tuple(going), tuple(kept), tuple(beyond))


# What a channel holds in a region, and the releases that it has held there, newest first.
_Moves = tuple[Held, Sequence[Release]]


def _moves(there: Target) -> list[_Moves]:
    return [
        (holding, list(channels.past(there, holding.line, holding.channel)))
        for holding in channels.all_held(there)
    ]


def _rollbacks(
    moves: Sequence[_Moves], settings: Mapping[str, Publish]
) -> dict[tuple[str, str], str]:
    """The images that a channel could be rolled back to, by region and id."""
    rollbacks: dict[tuple[str, str], str] = {}
    for holding, past in moves:
        keep = settings.get(holding.line, Publish()).keep.get(holding.channel, _KEEP)
        # After a rollback the next one goes further back than the newest releases.
        came = channels.arrival(past, holding.image_id, holding.region)
        why = f"{holding.channel} of {holding.line} could be rolled back to it"
        for release in (*_newest(past, keep), *_newest(past[came:], keep)):
            rollbacks.update(dict.fromkeys(release.images.items(), why))
    return rollbacks


def _newest(past: Sequence[Release], keep: int) -> list[Release]:
    """The moves of the newest `keep` releases."""
    names = list(dict.fromkeys(release.ami_name for release in past))[:keep]
    return [release for release in past if release.ami_name in names]


def _guarded(image: Image, users: Sequence[str]) -> str:
    if users:
        more = f" and {len(users) - 3} more" if len(users) > 3 else ""
        return f"used by {', '.join(users[:3])}{more}"
    if image.kept_by_tag:
        return "tagged kiln:keep"
    if image.protected and image.retiring:
        return "protected from deregistration by somebody since it was deprecated"
    if image.protected and image.line is None:
        return "protected from deregistration"
    return ""


def _settings_of(image: Image, settings: Mapping[str, Publish]) -> Publish:
    """Those of its line; of its row, as long as it was not published; the defaults."""
    for name in (image.line, image.tags.get(RECIPE), ""):
        if name is not None and name in settings:
            return settings[name]
    return Publish()


def _step(image: Image) -> RetireStep:
    if not image.retiring:
        return "deprecate"
    return "deregister" if image.state == "disabled" else "disable"


def _not_yet(image: Image, settings: Publish) -> str:
    """Why the next step is not due. `retire` takes an AMI from nobody without `deregister_after`:
    one that is only deprecated still launches."""
    step, setting = _step(image), "deregister_after"
    days, since = settings.deregister_after, _last_step(image)
    if step == "deprecate":
        setting, days, since = "deprecate_after", settings.deprecate_after, image.created
    elif step == "disable" and days:
        days = 1
    if days is None:
        return f"without {setting} nothing will {step} it"
    if since is None:
        return f"its tag {RETIRING} is not the date of a step"
    due = since + timedelta(days=days)
    return f"next step: {step}, on {due:%Y-%m-%d} or later" if utc_now() < due else ""


def _last_step(image: Image) -> datetime | None:
    try:
        return read_time(image.tags.get(RETIRING, ""))
    except ValueError:
        return None


def _launched_lately(image: Image) -> str:
    launched = image.launched
    if launched is None or launched - image.created < _VERIFYING:
        return ""
    if utc_now() - launched < _LATELY:
        return f"launched on {launched:%Y-%m-%d}"
    return ""


def _next(image: Image) -> Going:
    step = _step(image)
    why = f"{image.name}: no channel holds it, nothing uses it"
    if step != "deprecate":
        why += f"; {'deprecated' if step == 'disable' else 'disabled'} {image.tags[RETIRING]}"
    if step == "deregister" and image.snapshots:
        why += f", with {len(image.snapshots)} snapshots"
    return Going(image.ami_id, image.region, step, why)


def retire(target: Target, plan: Retirement) -> Retirement:
    """Do the steps of a plan: those that were due, each with its error if EC2 refused it, and what
    stays. One's failure stops no other.

    An image that a channel has come to hold since the plan was made stays.
    """
    done: list[Going] = []
    kept = list(plan.kept)
    for going in plan.would:
        there = target.in_region(going.region)
        try:
            image = find_image(there, going.ami_id)
            if image is None or not image.ours:  # somebody else was faster
                continue
            why = _held_since(there, image)
            if why:
                kept.append(Kept(going.ami_id, going.region, why))
                continue
            _do(there, going, image)
            done.append(going)
        except KilnError as refused:
            done.append(replace(going, error=refused.message))
    return Retirement(tuple(done), tuple(kept), plan.opened)


def _held_since(target: Target, image: Image) -> str:
    line = image.line
    held = channels.held_by_line(target, line) if line else channels.all_held(target)
    for holding in held:
        if holding.image_id == image.ami_id:
            return f"{holding.channel} of {holding.line} has come to hold it"
    return ""


def _do(target: Target, going: Going, image: Image) -> None:
    ec2 = aws.ec2(target)
    now = utc_now()
    dated = {"Resources": [going.ami_id], "Tags": [{"Key": RETIRING, "Value": as_time(now)}]}
    with aws.explained(f"{going.ami_id} could not be retired in {going.region}"):
        if going.step == "deprecate":
            # EC2 refuses a time that is past when it arrives.
            ec2.enable_image_deprecation(
                ImageId=going.ami_id, DeprecateAt=now + timedelta(minutes=1)
            )
            if image.protected:
                ec2.disable_image_deregistration_protection(ImageId=going.ami_id)
            ec2.create_tags(**dated)  # type: ignore[arg-type]
        elif going.step == "disable":
            # The date first: after an interruption the AMI waits too long, and not too short.
            ec2.create_tags(**dated)  # type: ignore[arg-type]
            ec2.disable_image(ImageId=going.ami_id)
        else:
            answer = ec2.deregister_image(ImageId=going.ami_id, DeleteAssociatedSnapshots=True)
            _delete_statements(target, image)
            _require_deleted(answer)


def _require_deleted(answer: DeregisterImageResultTypeDef) -> None:
    """Raises KilnError (exit status 1) for snapshots that EC2 kept, unless another AMI has them.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DeleteSnapshotReturnCode.html
    """
    kept = [
        f"{result.get('SnapshotId')} ({result.get('ReturnCode')})"
        for result in answer.get("DeleteSnapshotResults", [])
        if result.get("ReturnCode") not in ("success", "skipped")
    ]
    if kept:
        raise operation_failed(
            f"the AMI is deregistered, its snapshots are not deleted: {', '.join(kept)}",
            hint="./invoke sweep --apply deletes them",
        )


def _delete_statements(there: Target, image: Image) -> None:
    """Delete the statements of where an AMI came from: nothing leads to them now that it is gone.

    Its tag names the run that verified it last; the statement of its build may be there as well.
    What is about another AMI, such as a copy that took the place of this one, stays.
    """
    if PROVENANCE not in image.tags:
        return
    runs = {image.tags[RUN_ID], *image.tags[PROVENANCE].split()[1:2]}
    names = [statement_parameter(run) for run in sorted(runs) if vocabulary.RUN_ID.fits(run)]
    ssm = aws.ssm(there)
    for parameter in ssm.get_parameters(Names=names)["Parameters"]:
        if _subjects(parameter["Value"]) == [subject_name(image.region, image.ami_id)]:
            ssm.delete_parameter(Name=parameter["Name"])


def _subjects(envelope: str) -> list[str]:
    """What the statement in an envelope is about; nothing if it is not a statement."""
    try:
        statement = json.loads(b64decode(json.loads(envelope)["payload"]))
        return [subject["name"] for subject in statement["subject"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
