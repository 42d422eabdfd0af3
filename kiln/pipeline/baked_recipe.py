"""The recipe that an existing AMI was baked from, by which verification judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln import components
from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import ARCH, DISTRO, RECIPE, RECIPE_DIGEST
from kiln.packer.render import recipe_digest
from kiln.pipeline import kept_records, record

ON_THE_IMAGE = "/etc/kiln/recipe.json on the image"


@dataclass(frozen=True)
class Baked:
    """How an AMI is booted and what it is checked against.

    `recipe` is the recipe as JSON; None means that it is to be read from the image
    (`ON_THE_IMAGE`), because neither a record nor a row of the matrix has it.
    """

    name: str
    arch: str
    ssh_user: str
    verify_instance_type: str
    recipe: dict[str, Any] | None
    recipe_from: str


def baked(ami_id: str, tags: Mapping[str, str], recipes: Sequence[Recipe]) -> Baked:
    """What its tags, the records and the matrix say about an AMI before it is booted.

    A row of the same name counts only if it still has the digest of the AMI's tag: a row that has
    changed since describes another AMI.
    Raises KilnError (exit status 2) for an AMI that AMI Kiln did not build, or of a distribution
    that the matrix no longer has.
    """
    name = tags.get(RECIPE)
    if not name:
        raise KilnError(
            f"{ami_id} has no tag {RECIPE}",
            hint="only AMIs that AMI Kiln built can be verified; see ./invoke list",
        )
    vocabulary.RECIPE_NAME.required(name, f"{ami_id}: its tag {RECIPE}")
    built = kept_records.of_ami(ami_id)
    if built:
        return _of_record(name, built)
    same_name = next((recipe for recipe in recipes if recipe.name == name), None)
    if same_name and recipe_digest(same_name) == tags.get(RECIPE_DIGEST):
        return _of_row(
            name, same_name, same_name.as_json(), f"{same_name.row.file}, by the tagged digest"
        )
    like = same_name or _same_kind(ami_id, tags, recipes)
    return _of_row(name, like, None, ON_THE_IMAGE)


def require_components(recipe: Mapping[str, Any], image: str) -> None:
    """Refuse an image with components that this checkout does not have: what checks them is not
    here either, and the rest would pass without it.

    Raises KilnError (exit status 2), naming them.
    """
    own = {component.name for component in components.everything()}
    unknown = [str(name) for name in recipe.get("components") or () if name not in own]
    if unknown:
        raise KilnError(
            f"{image} has {', '.join(map(vocabulary.shown, unknown))}: nothing here checks that",
            hint="KILN_OVERLAY=DIR names the overlay with it; else verify it in the checkout that "
            "built it",
        )


def _of_record(name: str, built: record.Record) -> Baked:
    """What a record says. Its values reach ssh and EC2, so each must be what it is to be."""
    recipe, source = built.recipe, f"the record of run {built.run_id}"
    distro = recipe.get("distro")
    user = distro.get("ssh_user") if isinstance(distro, dict) else None
    forms = {"arch": vocabulary.ARCH, "verify_instance_type": vocabulary.INSTANCE_TYPE}
    arch, kind = (
        form.required(recipe.get(key), f"{source}: `{key}`") for key, form in forms.items()
    )
    user = vocabulary.USER.required(user, f"{source}: `distro.ssh_user`")
    return Baked(name, arch, user, kind, recipe, source)


def _of_row(name: str, row: Recipe, recipe: dict[str, Any] | None, source: str) -> Baked:
    return Baked(name, row.arch, row.distro.ssh_user, row.verify_instance_type, recipe, source)


def _same_kind(ami_id: str, tags: Mapping[str, str], recipes: Sequence[Recipe]) -> Recipe:
    """A row of the AMI's distribution and arch, for its user name and instance type."""
    distro, arch = tags.get(DISTRO), tags.get(ARCH)
    for recipe in recipes:
        if (recipe.distro.id, recipe.arch) == (distro, arch):
            return recipe
    raise KilnError(
        f"{ami_id} is tagged {DISTRO}={distro}, {ARCH}={arch}: the matrix has no row of that "
        "distribution and arch, so how to boot it is unknown",
        hint="add a row, or verify it in the checkout that built it",
    )
