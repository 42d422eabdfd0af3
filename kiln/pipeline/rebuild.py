"""`rebuild`: bakes again from a record's inputs: recipe, parent AMI and package snapshot."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.matrix import load
from kiln.packer.digest import recipe_digest
from kiln.pipeline.plan import Rebuilt
from kiln.pipeline.record import Record


def inputs(record: Record) -> tuple[Recipe, Rebuilt]:
    """The recipe of a record, and its parent AMI.

    Raises KilnError (exit status 2) if the record lacks one of them, or if this checkout would bake
    something else for that recipe: its provisioners, or what is rendered, have changed.
    """
    recipe = recipe_of(record)
    if record.source_ami is None:
        raise KilnError(
            f"the record of run {record.run_id} names no parent AMI, so its inputs are not known",
            hint="./invoke build bakes the row from today's parent",
        )
    # How the account is used is today's: the record says what is on the image.
    account = load.load_account(recipe.name)
    recipe = recipe.changed(row=recipe.row.changed(account=account))
    digest = recipe_digest(recipe)
    if digest != record.recipe_digest:
        raise KilnError(
            f"this checkout does not bake what run {record.run_id} baked: for the same recipe its "
            f"recipe digest is {digest}, the record's is {record.recipe_digest}",
            hint=_how_to_get_there(record.git_commit),
        )
    return recipe, Rebuilt(record.source_ami, f"the record of run {record.run_id}")


def recipe_of(record: Record) -> Recipe:
    """The recipe in a record, also of records that were written before today's fields.

    Raises KilnError (exit status 2) naming what is missing or wrong.
    """
    try:
        return Recipe.model_validate(_with_later_fields(record.recipe))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "recipe"
        raise KilnError(
            f"the record of run {record.run_id} holds no recipe that this checkout can bake: "
            f"`recipe.{where}`: {first['msg']}",
            hint=_how_to_get_there(record.git_commit),
        ) from None


def _with_later_fields(data: dict[str, Any]) -> dict[str, Any]:
    """The recipe with the fields that older records lack, as their absence was meant."""
    distro = data.get("distro")
    parts = [
        distro.get("id") if isinstance(distro, dict) else None,
        *(data.get(name) for name in ("stack", "flavor", "arch")),
    ]
    line = "-".join(map(str, parts)) if all(parts) else ""
    return {
        "line": line,
        "package_snapshot": None,
        "row": {"file": "the record", "line": 0, "index": 0},
        **data,
    }


def _how_to_get_there(commit: str) -> str:
    if commit == "unknown":
        return "the record names no git commit to check out"
    clean = commit.removesuffix("-dirty")
    way = f"bake from the record's commit: git worktree add ../kiln-{clean[:9]} {clean}"
    if clean != commit:
        way += "; its checkout had changes that were not committed, and those are not in it"
    return way
