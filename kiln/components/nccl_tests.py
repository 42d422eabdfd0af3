"""NVIDIA's nccl-tests from source."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download, needed


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The source archive of the newest release that builds with the recipe's CUDA."""
    return download(recipe, "NCCL_TESTS", needed(recipe.cuda, "cuda", recipe))


COMPONENT = Component(
    name="nccl-tests",
    what="NVIDIA's nccl-tests in /opt/nccl-tests, built with the image's CUDA, NCCL and Open MPI",
    needs="nccl",
    downloads=downloads,
)
