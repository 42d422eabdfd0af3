"""GDRCopy from source."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download, needed


def environment(recipe: Recipe) -> dict[str, str]:
    """GDRCopy's version."""
    return {"GDRCOPY_VERSION": needed(recipe.gdrcopy, "gdrcopy", recipe)}


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The release's source archive."""
    return download(recipe, "GDRCOPY", needed(recipe.gdrcopy, "gdrcopy", recipe))


COMPONENT = Component(
    name="gdrcopy",
    what="GDRCopy library and kernel module",
    needs="gdrcopy",
    environment=environment,
    downloads=downloads,
)
