"""dcgm-exporter."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, needed, packages


def environment(recipe: Recipe) -> Environment:
    """The exporter's package."""
    exporter = needed(recipe.dcgm_exporter, "dcgm_exporter", recipe)
    return {
        "DCGM_EXPORTER_VERSION": exporter,
        "DCGM_EXPORTER_PACKAGES": packages(recipe, "dcgm-exporter", exporter),
    }


COMPONENT = Component(
    name="dcgm-exporter",
    what="dcgm-exporter with our fields, on this machine's own address",
    needs="dcgm_exporter",
    environment=environment,
)
