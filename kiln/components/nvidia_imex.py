"""IMEX, for GB200 and GB300 hosts."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, packages


def environment(recipe: Recipe) -> Environment:
    """IMEX's package, at the driver's version."""
    return {
        "NVIDIA_DRIVER_VERSION": recipe.driver,
        "NVIDIA_IMEX_PACKAGES": packages(recipe, "nvidia-imex", recipe.driver),
    }


COMPONENT = Component(
    name="nvidia-imex",
    what="IMEX for GB200 and GB300 hosts, at exactly the driver's version",
    needs="imex",
    environment=environment,
)
