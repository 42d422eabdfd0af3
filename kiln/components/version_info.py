"""The list of what is on the image."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, packages


def environment(recipe: Recipe) -> Environment:
    """The package tool's plugin that holds packages; the script is the last that installs."""
    return {"HOLD_OS_PACKAGES": packages(recipe, "hold-plugin")}


COMPONENT = Component(
    name="version-info",
    what="/etc/kiln/version-info.json, the list of what is on the image",
    optional=False,
    environment=environment,
)
