"""DCGM's host engine."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, needed, packages


def environment(recipe: Recipe) -> Environment:
    """DCGM's packages; from DCGM 4 on a name carries the CUDA major of the driver."""
    dcgm = needed(recipe.dcgm, "dcgm", recipe)
    return {
        "DCGM_VERSION": dcgm,
        "DCGM_PACKAGES": packages(
            recipe, "dcgm", dcgm, driver_cuda=facts.driver_cuda(recipe.driver)
        ),
    }


COMPONENT = Component(
    name="dcgm",
    what="DCGM host engine",
    needs="dcgm",
    environment=environment,
)
