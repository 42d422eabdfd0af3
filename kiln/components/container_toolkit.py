"""NVIDIA's container toolkit, from a repository of its own."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import (
    Component,
    Download,
    Environment,
    download,
    needed,
    packages,
    repository,
)


def environment(recipe: Recipe) -> Environment:
    """The toolkit's packages and their repository."""
    toolkit = needed(recipe.container_toolkit, "container_toolkit", recipe)
    return {
        "CONTAINER_TOOLKIT_VERSION": toolkit,
        "CONTAINER_TOOLKIT_PACKAGES": packages(recipe, "container-toolkit", toolkit),
        "CONTAINER_TOOLKIT_REPO_URL": repository(recipe, "CONTAINER_TOOLKIT_REPO_URL"),
    }


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The repository's signing key."""
    return download(recipe, "CONTAINER_TOOLKIT_KEY")


COMPONENT = Component(
    name="container-toolkit",
    what="NVIDIA container toolkit, configured for the runtimes on the image",
    needs="container_toolkit",
    keys={"CONTAINER_TOOLKIT_KEY_FINGERPRINT": "nvidia-container-toolkit"},
    environment=environment,
    downloads=downloads,
)
