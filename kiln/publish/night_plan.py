"""The plan of a night: which rows are due, and why.

The tags of a row's AMI say what it was built from, so every machine decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST, RECIPE, RECIPE_DIGEST, SOURCE_AMI, VERIFIED
from kiln.base.times import read_time, utc_now
from kiln.base.verdict_tag import says_verified
from kiln.cloud import parents
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.pipeline import plan as planning
from kiln.pipeline.plan import Options, Plan
from kiln.pipeline.record import document
from kiln.publish import channels
from kiln.publish.channels import Held
from kiln.publish.own_images import OwnImage, own_images
from kiln.publish.pending_updates import Bring, Lacking, lacking_updates


@dataclass(frozen=True)
class Due:
    """A row that must be built, or only published (`ami_id`: its verified AMI), and why.

    `unknown` says why it is not known whether that AMI lacks security updates; "" if it is.
    `outdated` is the verified AMI whose missing security updates are the reason, if they are.
    """

    recipe: Recipe
    why: str
    ami_id: str | None = None
    unknown: str = ""
    outdated: str | None = None


@dataclass(frozen=True)
class Planned:
    """What the plan of a night says of a row that was due; the fields are those of `Due`."""

    why: str
    outdated: str | None = None


@dataclass(frozen=True)
class Skipped:
    """A row that needs nothing: its channel holds an AMI of the same inputs. `unknown` as in `Due`:
    such a row is not built, and nothing says that it is up to date."""

    row: str
    why: str
    ami_id: str
    line: str
    channel: str
    unknown: str = ""
    verdict: str | None = None


@dataclass(frozen=True)
class Impossible:
    """A row that cannot be built, because its parent AMI is not there, and why."""

    recipe: Recipe
    why: str


@dataclass(frozen=True)
class Night:
    """What a night has to do."""

    due: tuple[Due, ...]
    skipped: tuple[Skipped, ...]
    impossible: tuple[Impossible, ...] = ()


def _nothing(runs: Mapping[str, str]) -> None:
    """There is no bucket of records."""


def plan_night(
    recipes: Sequence[Recipe],
    settings: Mapping[str, Publish],
    target: Target,
    bring: Bring = _nothing,
    planned: Mapping[str, Planned] | None = None,
) -> Night:
    """Which of the recipes are due. `settings` are by the recipe's name; starts nothing.

    A night has one region, the target's: where its rows are built, and where it looks for what was
    built. Requests grow with the parent AMIs, each of which is looked up once; images and channels
    are listed once. Each distribution's security repositories are asked once, and only if a row's
    newest AMI has its inputs. `bring` fetches the records of such rows that are not here (row → run
    id). `planned`, at the end of a night: what was due in it, by row; an update
    that was published since then makes nothing due. Raises KilnError (exit status 1) if AWS
    refuses.
    """
    images = own_images(target)
    held = {(holding.line, holding.channel): holding for holding in channels.all_held(target)}
    find = parents.once()
    due: list[Due] = []
    impossible: list[Impossible] = []
    # Rows whose newest AMI has the same inputs, and what their channel holds.
    same: dict[str, tuple[Recipe, OwnImage, Held | None]] = {}
    for recipe in recipes:
        chosen = settings[recipe.name]
        options = Options(aws_flags={"region": target.region})
        try:
            plan = planning.plan_build(recipe, target, options, find=find)
        except parents.ParentNotFoundError as error:
            impossible.append(Impossible(recipe, error.message))
            continue
        judged = _judge(plan, images, chosen)
        if isinstance(judged, Due):
            due.append(judged)
        else:
            now = held.get((recipe.channel_line, chosen.channels[0]))
            same[recipe.name] = (recipe, judged, now)
    lacking = lacking_updates([(row, image) for row, image, _ in same.values()], target, bring)
    skipped: list[Skipped] = []
    for recipe, image, now in same.values():
        missing = lacking.get(recipe.name)
        since = ""
        if missing and planned is not None and not _is_for(planned.get(recipe.name), image):
            since = f"; published since the plan: {missing}" if missing.updates else ""
            missing = replace(missing, updates=())
        row = _row(recipe, image, now, settings[recipe.name], missing)
        row = replace(row, why=row.why + since)
        if isinstance(row, Due):
            due.append(row)
        else:
            skipped.append(row)
    order = {recipe.name: number for number, recipe in enumerate(recipes)}
    due.sort(key=lambda row: order[row.recipe.name])
    return Night(tuple(due), tuple(skipped), tuple(impossible))


def _judge(plan: Plan, images: Sequence[OwnImage], settings: Publish) -> Due | OwnImage:
    """Why the row must be built, or its newest verified AMI, which has the same inputs."""
    recipe = plan.recipe
    verified = [
        image
        for image in images
        if image.tags.get(RECIPE) == recipe.name
        and says_verified(image.tags.get(VERIFIED))
        and image.state == "available"
    ]
    if not verified:
        return Due(recipe, "it has no verified AMI")
    newest = max(verified, key=lambda image: image.created)
    if newest.tags.get(INPUT_DIGEST) != plan.input_digest:
        return Due(
            recipe, f"its inputs have changed since {newest.ami_id}: {_changed(plan, newest)}"
        )
    age = _age(newest)
    if age > timedelta(days=settings.max_age):
        return Due(recipe, f"{newest.ami_id} is {age.days} days old, more than {settings.max_age}")
    return newest


def _was_rolled_back(now: Held, image: OwnImage) -> bool:
    """Has somebody taken the channel back to another AMI since this one was built?"""
    release = now.release
    return (
        release is not None
        and not now.moving
        and release.moved.action == "rollback"
        and now.image_id != image.ami_id
        and read_time(release.moved.at) > image.created
    )


def _changed(plan: Plan, image: OwnImage) -> str:
    """Which inputs differ from those that the image's tags name."""
    recipe = image.tags.get(RECIPE_DIGEST) != plan.recipe_digest
    before, now = image.tags.get(SOURCE_AMI), plan.source.ami_id
    words = ["the recipe, the lock or a script"] if recipe else []
    if before != now:
        words.append(f"the parent AMI ({before or 'unknown'} → {now})")
    return " and ".join(words) or "the package snapshot"


def _is_for(planned: Planned | None, image: OwnImage) -> bool:
    """Was the row due because this image lacked updates?"""
    return planned is not None and planned.outdated == image.ami_id


def _age(image: OwnImage) -> timedelta:
    return utc_now() - image.created


def _row(
    recipe: Recipe,
    image: OwnImage,
    now: Held | None,
    settings: Publish,
    lacking: Lacking | None,
) -> Due | Skipped:
    """A row whose newest AMI has its inputs. `lacking` is None where a bake of today would bring no
    update."""
    if lacking and lacking.updates:
        return Due(recipe, f"{image.ami_id} has {lacking}", outdated=image.ami_id)
    unknown = lacking.unknown if lacking else ""
    doubt = f"; whether it lacks security updates is not known: {unknown}" if unknown else ""
    channel = settings.channels[0]
    if now is not None and now.release is not None and _was_rolled_back(now, image):
        release = now.release
        why = (
            f"{channel} was rolled back to {now.image_id} at {release.moved.at}, after "
            f"{image.ami_id} was built, which is not published again: ./invoke publish --name "
            f"{recipe.name} does that{doubt}"
        )
        line, verdict = recipe.channel_line, release.verdict
        return Skipped(recipe.name, why, now.image_id, line, channel, unknown, verdict)
    if now is None or now.image_id != image.ami_id or now.moving:
        why = f"{image.ami_id}, built before, was not in {channel} yet{doubt}"
        return Due(recipe, why, image.ami_id, unknown)
    updates = ", lacks no published security update" if lacking and not unknown else ""
    why = f"{image.ami_id} has the same inputs{updates} and is {_age(image).days} days old{doubt}"
    return Skipped(
        recipe.name,
        why,
        image.ami_id,
        recipe.channel_line,
        channel,
        unknown,
        image.tags.get(VERIFIED),
    )


def read_plan(path: Path) -> dict[str, Planned]:
    """What was due, by row, of what `nightly.plan --json` printed.

    Raises KilnError (exit status 2) for another file.
    """
    items = document(path).get("items")
    if not isinstance(items, list):
        raise KilnError(f"{path}: not a plan of a night: it has no list `items`", hint=_PLAN)
    for index, item in enumerate(items):
        fields = item if isinstance(item, dict) else {}
        if not vocabulary.RECIPE_NAME.fits(fields.get("row")) or not isinstance(
            fields.get("why"), str
        ):
            raise KilnError(
                f"{path}: not a plan of a night: `items[{index}]` has no row and why", hint=_PLAN
            )
        if not isinstance(fields.get("outdated"), str | None):
            raise KilnError(
                f"{path}: not a plan of a night: `items[{index}].outdated` is not the id of an AMI",
                hint=_PLAN,
            )
    return {item["row"]: Planned(item["why"], item.get("outdated")) for item in items}


_PLAN = "./invoke nightly.plan --json > plan.json writes one"
