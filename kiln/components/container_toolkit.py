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

# Who makes the runtime known to the container runtimes of a parent AMI; nvidia-ctk elsewhere.
# source: github:aws/amazon-ecs-ami scripts/al2023/gpu/enable-ecs-agent-gpu-support-al2023.sh
# @a2532d3503f2052a09ac18189b0de33918406db8; github:awslabs/amazon-eks-ami
# nodeadm/internal/containerd/runtime_config_nvidia.go @81fec2e895854f599974fe4d3d72f61c0a9aaffa
_REGISTRIES = {"ecs": "docker-runtimes.d", "eks": "nodeadm"}


def environment(recipe: Recipe) -> Environment:
    """The toolkit's packages and their repository, and who registers its runtime."""
    toolkit = needed(recipe.container_toolkit, "container_toolkit", recipe)
    return {
        "CONTAINER_RUNTIME_REGISTRY": _REGISTRIES.get(recipe.flavor, "nvidia-ctk"),
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
