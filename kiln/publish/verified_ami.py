"""Which AMI of a row may be published: its record, its tags and its digest agree that it is
verified."""

from __future__ import annotations

from kiln.base.errors import KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.base.tags import RECIPE, RECIPE_DIGEST, VERIFIED, says_verified
from kiln.cloud.images import Image, own_images, require_image
from kiln.cloud.target import Target
from kiln.pipeline import records
from kiln.pipeline.record import Record


def verified_ami(recipe: Recipe, ami_id: str | None, target: Target) -> tuple[Image, Record]:
    """Return the AMI with that id, or the recipe's newest verified one of this target and region,
    and the record that says so.

    Raises KilnError (exit status 1) if it is not verified, and names the evidence: the record, the
    tag, or both if they differ.
    """
    record = _newest(recipe, target, ami_id)
    if record is None or record.ami_id is None:
        wanted = f"{ami_id}" if ami_id else f"an AMI of {recipe.name}"
        raise operation_failed(
            f"{target.where}: this checkout has no record of a verification of {wanted}",
            hint=f"./invoke verify --ami {ami_id} checks it and writes one"
            if ami_id
            else f"./invoke build --name {recipe.name} makes one",
        )
    if record.status != "verified":
        raise _not_verified(record.ami_id, f"run {record.run_id} ended as {record.status}")
    image = require_image(target, record.ami_id)
    _require(record, image.tags, recipe)
    return image, record


def _newest(recipe: Recipe, target: Target, ami_id: str | None) -> Record | None:
    """The last run that judged the wanted AMI; without an id the last of the newest verified AMI,
    or, if none is, the newest run."""
    last: dict[str, Record] = {}
    for record in records.all_of(recipe.name):
        here = (record.target, record.region) == (target.kind, target.region)
        if here and record.ami_id and not record.is_inconclusive:
            last.setdefault(record.ami_id, record)
    if ami_id:
        return last.get(ami_id)
    verified = [record for record in last.values() if record.status == "verified"]
    if len(verified) > 1:
        # The newest verification may be that of an old AMI.
        created = {image.ami_id: image.created for image in own_images(target)}
        there = [record for record in verified if record.ami_id in created]
        if verified[0] in there:
            return max(there, key=lambda record: created[str(record.ami_id)])
    return next(iter([*verified, *last.values()]), None)


def _require(record: Record, tags: dict[str, str], recipe: Recipe) -> None:
    """Raises KilnError if the AMI's tags do not say what its record says."""
    ami_id = str(record.ami_id)
    if not says_verified(tags.get(VERIFIED)):
        says = tags.get(VERIFIED)
        raise _not_verified(
            ami_id,
            f"its tag {VERIFIED} says {says}"
            if says
            else f"it has no tag {VERIFIED}, although run {record.run_id} verified it",
        )
    for key, expected in ((RECIPE, recipe.name), (RECIPE_DIGEST, record.recipe_digest)):
        if tags.get(key) != expected:
            raise _not_verified(
                ami_id,
                f"its tag {key} is {tags.get(key) or 'missing'}; its record says {expected}",
            )


def _not_verified(ami_id: str, why: str) -> KilnError:
    return operation_failed(
        f"{ami_id} is not verified, so it is not published: {why}",
        hint=f"./invoke verify --ami {ami_id} checks it",
    )
