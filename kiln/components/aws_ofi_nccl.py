"""NCCL's EFA plugin from source, for EFA installers that do not bundle it."""

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
    """The plugin's version, and the distribution's packages that it is built with."""
    return {
        "AWS_OFI_NCCL_VERSION": needed(recipe.ofi_nccl, "ofi_nccl", recipe),
        "AWS_OFI_NCCL_OS_PACKAGES": packages(recipe, "aws-ofi-nccl"),
    }


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The release's source archive."""
    return download(recipe, "AWS_OFI_NCCL", needed(recipe.ofi_nccl, "ofi_nccl", recipe))


COMPONENT = Component(
    name="aws-ofi-nccl",
    what="NCCL's EFA plugin from source, for installers that do not bundle it",
    needs="ofi_nccl",
    environment=environment,
    downloads=downloads,
)
