"""The plan of a night: which rows are due, and why.

The tags of a row's AMI say what it was built from, so every machine decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST, RECIPE, RECIPE_DIGEST, SOURCE_AMI, VERIFIED, says_verified
from kiln.base.times import read_time, utc_now
from kiln.cloud import parents
from kiln.cloud.images import Image, own_images
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.pipeline import plan as planning
from kiln.pipeline.plan import Options, Plan
from kiln.pipeline.record import document
from kiln.publish import channels
from kiln.publish.channels import Held


@dataclass(frozen=True)
class Due:
    """A row that must be built, or only published (`ami_id`: its verified AMI), and why."""

    recipe: Recipe
    why: str
    ami_id: str | None = None


@dataclass(frozen=True)
class Skipped:
    """A row that needs nothing: its channel holds an AMI of the same inputs."""

    row: str
    why: str
    ami_id: str
    line: str
    channel: str
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


def plan_night(recipes: Sequence[Recipe], settings: Mapping[str, Publish], target: Target) -> Night:
    """Which of the recipes are due. `settings` are by the recipe's name; starts nothing.

    A night has one region, the target's: where its rows are built, and where it looks for what was
    built. Requests grow with the parent AMIs, each of which is looked up once; images and channels
    are listed once. Raises KilnError (exit status 1) if AWS refuses.
    """
    images = own_images(target)
    held = {(holding.line, holding.channel): holding for holding in channels.all_held(target)}
    find = parents.once()
    rows: list[Due | Skipped | Impossible] = []
    for recipe in recipes:
        chosen = settings[recipe.name]
        options = Options(aws_flags={"region": target.region})
        try:
            plan = planning.plan_build(recipe, target, options, find=find)
        except parents.ParentNotFoundError as error:
            rows.append(Impossible(recipe, error.message))
            continue
        newest = _judge(plan, images, chosen)
        now = held.get((recipe.channel_line, chosen.channels[0]))
        rows.append(newest if isinstance(newest, Due) else _row(recipe, newest, now, chosen))
    return Night(
        tuple(row for row in rows if isinstance(row, Due)),
        tuple(row for row in rows if isinstance(row, Skipped)),
        tuple(row for row in rows if isinstance(row, Impossible)),
    )


def _judge(plan: Plan, images: Sequence[Image], settings: Publish) -> Due | Image:
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


def _was_rolled_back(now: Held, image: Image) -> bool:
    """Has somebody taken the channel back to another AMI since this one was built?"""
    release = now.release
    return (
        release is not None
        and not now.moving
        and release.moved.action == "rollback"
        and now.image_id != image.ami_id
        and read_time(release.moved.at) > image.created
    )


def _changed(plan: Plan, image: Image) -> str:
    """Which inputs differ from those that the image's tags name."""
    recipe = image.tags.get(RECIPE_DIGEST) != plan.recipe_digest
    before, now = image.tags.get(SOURCE_AMI), plan.source.ami_id
    words = ["the recipe, the lock or a script"] if recipe else []
    if before != now:
        words.append(f"the parent AMI ({before or 'unknown'} → {now})")
    return " and ".join(words) or "the package snapshot"


def _age(image: Image) -> timedelta:
    return utc_now() - image.created


def _row(recipe: Recipe, image: Image, now: Held | None, settings: Publish) -> Due | Skipped:
    """A row whose newest AMI has its inputs."""
    channel = settings.channels[0]
    if now is not None and now.release is not None and _was_rolled_back(now, image):
        release = now.release
        why = (
            f"{channel} was rolled back to {now.image_id} at {release.moved.at}, after "
            f"{image.ami_id} was built, which is not published again: ./invoke publish --name "
            f"{recipe.name} does that"
        )
        return Skipped(
            recipe.name, why, now.image_id, recipe.channel_line, channel, release.verdict
        )
    if now is None or now.image_id != image.ami_id or now.moving:
        return Due(recipe, f"{image.ami_id}, built before, was not in {channel} yet", image.ami_id)
    why = f"{image.ami_id} has the same inputs and is {_age(image).days} days old"
    verdict = image.tags.get(VERIFIED)
    return Skipped(recipe.name, why, image.ami_id, recipe.channel_line, channel, verdict)


def read_plan(path: Path) -> dict[str, str]:
    """Row → why it was due, of what `nightly.plan --json` printed.

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
    return {item["row"]: item["why"] for item in items}


_PLAN = "./invoke nightly.plan --json > plan.json writes one"
