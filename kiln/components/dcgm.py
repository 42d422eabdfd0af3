"""DCGM's host engine."""

from __future__ import annotations

from kiln import facts
from kiln.base import versions
from kiln.base.recipe import Recipe
from kiln.components.component import Component, needed, packages


def environment(recipe: Recipe) -> dict[str, str]:
    """DCGM's packages; from DCGM 4 on a name carries the CUDA major of the driver."""
    dcgm = needed(recipe.dcgm, "dcgm", recipe)
    return {
        "DCGM_VERSION": dcgm,
        "DCGM_PACKAGES": packages(recipe, "dcgm", dcgm, driver_cuda=_driver_cuda(recipe)),
    }


def _driver_cuda(recipe: Recipe) -> str:
    """The newest CUDA major that the driver's branch runs: 580 → 13. The oldest known for a driver
    from before them all."""
    floors: dict[str, str] = facts.table("cuda")["floors"]
    majors = sorted(floors, key=versions.key)
    runs = [
        major
        for major in majors
        if versions.at_least(recipe.driver_branch, versions.major(floors[major]))
    ]
    return runs[-1] if runs else majors[0]


COMPONENT = Component(
    name="dcgm",
    what="DCGM host engine",
    needs="dcgm",
    environment=environment,
)
