"""NVIDIA's package repository."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, Environment, download, repository


def environment(recipe: Recipe) -> Environment:
    """NVIDIA's name of the distribution and the repository's URL."""
    return {
        "CUDA_REPO": recipe.distro.cuda_repo,
        "CUDA_REPO_URL": repository(recipe, "CUDA_REPO_URL"),
    }


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The repository's signing key."""
    return download(recipe, "CUDA_REPO_KEY")


COMPONENT = Component(
    name="nvidia-repo",
    what="NVIDIA's package repository, its key checked by fingerprint",
    needs="driver",
    keys={
        "CUDA_RPM_KEY_FINGERPRINT": "nvidia-cuda-rpm",
        "CUDA_DEB_KEY_FINGERPRINT": "nvidia-cuda-deb",
    },
    environment=environment,
    downloads=downloads,
)
