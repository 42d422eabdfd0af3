"""CUDA's toolkit."""

from __future__ import annotations

from kiln.base import versions
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, needed, of_cuda, packages


def environment(recipe: Recipe) -> Environment:
    """The toolkit's package, whose name carries CUDA's series."""
    cuda = needed(recipe.cuda, "cuda", recipe)
    return {
        "CUDA_VERSION": cuda,
        "CUDA_SERIES": versions.series(cuda),
        "CUDA_PACKAGES": packages(recipe, "cuda", cuda, **of_cuda(recipe)),
    }


COMPONENT = Component(name="cuda", what="CUDA toolkit", needs="cuda", environment=environment)
