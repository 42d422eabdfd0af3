"""NVIDIA's mig-parted."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download, needed


def environment(recipe: Recipe) -> dict[str, str]:
    """mig-parted's version."""
    return {"MIG_PARTED_VERSION": needed(recipe.mig_parted, "mig_parted", recipe)}


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The release's archive of programs."""
    return download(recipe, "MIG_PARTED", needed(recipe.mig_parted, "mig_parted", recipe))


COMPONENT = Component(
    name="mig-parted",
    what="mig-parted, with which gpu-mig then creates the instances",
    needs="mig_parted",
    environment=environment,
    downloads=downloads,
)
