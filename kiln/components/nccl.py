"""NCCL for the recipe's CUDA."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, needed, of_cuda, packages


def environment(recipe: Recipe) -> Environment:
    """NCCL's packages; their revision carries CUDA's series."""
    nccl = needed(recipe.nccl, "nccl", recipe)
    return {
        "NCCL_VERSION": nccl,
        "NCCL_PACKAGES": packages(recipe, "nccl", nccl, **of_cuda(recipe)),
    }


COMPONENT = Component(
    name="nccl",
    what="NCCL packages for that CUDA",
    needs="nccl",
    environment=environment,
)
