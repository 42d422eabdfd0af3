"""cuDNN for the recipe's CUDA."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, needed, of_cuda, packages


def environment(recipe: Recipe) -> Environment:
    """cuDNN's packages; their names (cuDNN 9) or revisions (cuDNN 8) carry CUDA's major."""
    cudnn = needed(recipe.cudnn, "cudnn", recipe)
    return {
        "CUDNN_VERSION": cudnn,
        "CUDNN_PACKAGES": packages(recipe, "cudnn", cudnn, **of_cuda(recipe)),
    }


COMPONENT = Component(
    name="cudnn",
    what="cuDNN for that CUDA",
    needs="cudnn",
    environment=environment,
)
