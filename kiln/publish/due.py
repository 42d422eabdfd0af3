"""Which rows a night builds or publishes, and why.

The tags of a row's AMI say what it was built from, so every machine decides alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from kiln.base.tags import INPUT_DIGEST, RECIPE, RECIPE_DIGEST, SOURCE_AMI, VERIFIED, says_verified
from kiln.base.times import read_time, utc_now
from kiln.cloud.images import Image, ParentNotFoundError, own_images, parent_finder
from kiln.cloud.target import Target
from kiln.pipeline import plan as planning
from kiln.pipeline.plan import Options, Plan
from kiln.publish import channels
from kiln.publish.channels import Held
from kiln.publish.lines import Line


@dataclass(frozen=True)
class DueRow:
    """What a night does with a row, and why.

    `ami_id` is the AMI to publish, or of a skipped row the one that its channel holds. A row fails
    whose parent AMI is not there.
    """

    line: Line
    action: Literal["build", "publish", "skip", "fail"]
    why: str
    ami_id: str | None = None
    verdict: str | None = None

    @property
    def due(self) -> bool:
        """Whether the row is built or published."""
        return self.action in ("build", "publish")

    @property
    def name(self) -> str:
        """The row's name."""
        return self.line.recipe.name

    @property
    def channel(self) -> str:
        """The first channel of its line."""
        return self.line.settings.channels[0]


def plan_night(lines: Iterable[Line], target: Target) -> list[DueRow]:
    """Return what a night does with each row; starts nothing.

    A night has one region, the target's: where its rows are built, and where it looks for what was
    built. Each parent AMI is looked up once; images and channels are listed once.
    """
    images = own_images(target)
    held = {(holding.line, holding.channel): holding for holding in channels.all_held(target)}
    find, options = parent_finder(), Options(aws_flags={"region": target.region})
    rows = []
    for line in lines:
        try:
            plan = planning.plan_build(line.recipe, target, options, find=find)
        except ParentNotFoundError as error:
            rows.append(DueRow(line, "fail", error.message))
            continue
        rows.append(_due(line, plan, images, held.get((line.name, line.settings.channels[0]))))
    return rows


def _due(line: Line, plan: Plan, images: Sequence[Image], held: Held | None) -> DueRow:
    name, first = line.recipe.name, line.settings.channels[0]
    verified = [
        image
        for image in images
        if image.tags.get(RECIPE) == name
        and says_verified(image.tags.get(VERIFIED))
        and image.state == "available"
    ]
    if not verified:
        return DueRow(line, "build", "it has no verified AMI")
    newest = max(verified, key=lambda image: image.created)
    ami_id, age = newest.ami_id, utc_now() - newest.created
    if newest.tags.get(INPUT_DIGEST) != plan.input_digest:
        why = f"its inputs have changed since {ami_id}: {_changed(plan, newest)}"
        return DueRow(line, "build", why)
    if age > timedelta(days=line.settings.max_age):
        why = f"{ami_id} is {age.days} days old, more than {line.settings.max_age}"
        return DueRow(line, "build", why)
    if held and held.release and held.image_id != ami_id and _was_rolled_back(held, newest):
        why = (
            f"{first} was rolled back to {held.image_id} at {held.release.moved.at}, after "
            f"{ami_id} was built, which is not published again: ./invoke publish --name {name} "
            "does that"
        )
        return DueRow(line, "skip", why, held.image_id, held.release.verdict)
    if held is None or held.image_id != ami_id or held.moving:
        return DueRow(line, "publish", f"{ami_id}, built before, was not in {first} yet", ami_id)
    why = f"{ami_id} has the same inputs and is {age.days} days old"
    return DueRow(line, "skip", why, ami_id, newest.tags.get(VERIFIED))


def _was_rolled_back(held: Held, image: Image) -> bool:
    """Whether somebody has rolled the channel back since the image was built."""
    moved = held.release.moved if held.release and not held.moving else None
    return bool(moved and moved.action == "rollback" and read_time(moved.at) > image.created)


def _changed(plan: Plan, image: Image) -> str:
    """Return which inputs differ from those that the image's tags name."""
    recipe = image.tags.get(RECIPE_DIGEST) != plan.recipe_digest
    before, now = image.tags.get(SOURCE_AMI), plan.source.ami_id
    words = ["the recipe, the lock or a script"] if recipe else []
    if before != now:
        words.append(f"the parent AMI ({before or 'unknown'} → {now})")
    return " and ".join(words) or "the package snapshot"
