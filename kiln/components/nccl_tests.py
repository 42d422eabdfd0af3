"""NVIDIA's nccl-tests from source."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import (
    Component,
    Download,
    Environment,
    download,
    needed,
    packages,
)


def environment(recipe: Recipe) -> Environment:
    """The distribution's packages that the tests are built with."""
    return {"NCCL_TESTS_OS_PACKAGES": packages(recipe, "nccl-tests")}


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The source archive of the newest release that builds with the recipe's CUDA."""
    return download(recipe, "NCCL_TESTS", needed(recipe.cuda, "cuda", recipe))


COMPONENT = Component(
    name="nccl-tests",
    what="NVIDIA's nccl-tests in /opt/nccl-tests, built with the image's CUDA, NCCL and Open MPI",
    needs="nccl",
    environment=environment,
    downloads=downloads,
)
