"""The GPUs' MIG configuration; its files are in runtime/."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component


def environment(recipe: Recipe) -> dict[str, str]:
    """The image's default label of mig-config.yaml."""
    return {"MIG_CONFIG": recipe.mig_config or ""}


COMPONENT = Component(
    name="gpu-mig",
    what="MIG configuration applied at every boot",
    environment=environment,
)
