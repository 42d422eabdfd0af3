"""The components of AMIs, in bake order. Component `nvidia-driver` is NVIDIA_DRIVER in the module
of its subject."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import overlay
from kiln.base.recipe import Recipe
from kiln.components import stack, system
from kiln.components.component import Component, Download, Step

# Imported from here.
__all__ = ["Component", "Download", "Step"]

_IN_BAKE_ORDER = (
    system.PACKAGE_SNAPSHOT,
    system.KERNEL,
    stack.NVIDIA_REPO,
    stack.NVIDIA_DRIVER,
    stack.NVIDIA_FABRICMANAGER,
    stack.NVIDIA_IMEX,
    stack.CUDA,
    stack.CUDNN,
    stack.NCCL,
    stack.EFA,
    stack.AWS_OFI_NCCL,
    stack.GDRCOPY,
    stack.NCCL_TESTS,
    system.DCGM,
    system.DCGM_EXPORTER,
    system.CONTAINER_TOOLKIT,
    system.AWS_HW_MONITOR,
    stack.GPU_MIG,
    stack.BOOST_CLOCKS,
    system.TUNING,
    system.LUSTRE_CLIENT,
    system.SSM_AGENT,
    system.CLOUDWATCH_AGENT,
    system.VERSION_INFO,
    system.CLEANUP,
    system.HYGIENE,
)
_COMPONENTS: dict[str, Component] = {each.name: each for each in _IN_BAKE_ORDER}


@cache
def _by_name(folders: tuple[Path, ...]) -> dict[str, Component]:
    if not folders:
        return _COMPONENTS
    from kiln.components.own import with_own

    return with_own(_COMPONENTS, folders)


def everything() -> tuple[Component, ...]:
    """All components, the overlays' too, in the order in which they are baked."""
    return tuple(_by_name(overlay.overlays()).values())


def names() -> list[str]:
    """The names of all components, in bake order."""
    return list(_by_name(overlay.overlays()))


def get(name: str) -> Component:
    """The component of that name. Raises KeyError if there is none."""
    return _by_name(overlay.overlays())[name]


def steps(recipe: Recipe) -> list[Step]:
    """The work of the recipe's components for it, in bake order."""
    return [get(name).for_recipe(recipe) for name in recipe.components]


def is_ours(name: str) -> bool:
    """Return True if the component is AMI Kiln's own, not an overlay's."""
    return name in _COMPONENTS


def selected(
    stack: Mapping[str, Any], without: set[str], distro: str, arch: str
) -> tuple[str, ...]:
    """The components that a GPU stack requests, the distribution supports and instance types with
    the processor need, without those that a row leaves out, in bake order."""
    return tuple(
        component.name
        for component in everything()
        if component.name not in without
        and distro not in component.lacks
        and (component.needs is None or stack.get(component.needs))
        and (component.wanted is None or component.wanted(stack))
        and (component.serves is None or component.serves(arch))
    )
