"""NVIDIA's package repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, Environment, download, repository

# What is installed from this repository; the driver too, for `driver_source: repo`.
_SERVED = ("cuda", "cudnn", "nccl", "nvlsm", "dcgm", "dcgm_exporter", "imex")


def gives_something(stack: Mapping[str, Any]) -> bool:
    """Does a GPU stack have anything from NVIDIA's repository? Debian's own driver alone has not:
    an image of it must not get NVIDIA's driver by a later `apt install`."""
    return (stack.get("driver_source") or "repo") == "repo" or any(map(stack.get, _SERVED))


def environment(recipe: Recipe) -> Environment:
    """NVIDIA's name of the distribution and the repository's URL; where that one lacks cuDNN and
    NCCL, a second one for these alone."""
    return {
        "CUDA_REPO": recipe.distro.cuda_repo,
        "CUDA_REPO_URL": repository(recipe, "CUDA_REPO_URL"),
        "CUDA_LIBRARIES_REPO_URL": (
            repository(recipe, "CUDA_LIBRARIES_REPO_URL") if recipe.cudnn or recipe.nccl else ""
        ),
    }


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The repository's signing key."""
    return download(recipe, "CUDA_REPO_KEY")


COMPONENT = Component(
    name="nvidia-repo",
    what="NVIDIA's package repository, its key checked by fingerprint",
    needs="driver",
    wanted=gives_something,
    keys={
        "CUDA_RPM_KEY_FINGERPRINT": "nvidia-cuda-rpm",
        "CUDA_DEB_KEY_FINGERPRINT": "nvidia-cuda-deb",
    },
    environment=environment,
    downloads=downloads,
)
