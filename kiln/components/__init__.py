"""What can be baked into an AMI: one module per component, in bake order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import overlay
from kiln.components import (
    aws_hw_monitor,
    aws_ofi_nccl,
    boost_clocks,
    cleanup,
    cloudwatch_agent,
    container_toolkit,
    cuda,
    cudnn,
    dcgm,
    dcgm_exporter,
    efa,
    gdrcopy,
    gpu_mig,
    hygiene,
    kernel,
    lustre_client,
    mig_parted,
    nccl,
    nccl_tests,
    nvidia_driver,
    nvidia_fabricmanager,
    nvidia_imex,
    nvidia_repo,
    own,
    package_snapshot,
    ssm_agent,
    tuning,
    version_info,
)
from kiln.components.component import Component, Download, Step

__all__ = ["Component", "Download", "Step", "everything", "get", "is_ours", "names", "selected"]

_IN_BAKE_ORDER = (
    package_snapshot,
    kernel,
    nvidia_repo,
    nvidia_driver,
    nvidia_fabricmanager,
    nvidia_imex,
    cuda,
    cudnn,
    nccl,
    efa,
    aws_ofi_nccl,
    gdrcopy,
    nccl_tests,
    dcgm,
    dcgm_exporter,
    container_toolkit,
    aws_hw_monitor,
    mig_parted,
    gpu_mig,
    boost_clocks,
    tuning,
    lustre_client,
    ssm_agent,
    cloudwatch_agent,
    version_info,
    cleanup,
    hygiene,
)
_COMPONENTS: dict[str, Component] = {
    module.COMPONENT.name: module.COMPONENT for module in _IN_BAKE_ORDER
}


@cache
def _by_name(folders: tuple[Path, ...]) -> dict[str, Component]:
    return own.with_own(_COMPONENTS, folders) if folders else _COMPONENTS


def everything() -> tuple[Component, ...]:
    """All components, the overlays' too, in the order in which they are baked.

    Raises KilnError (exit status 2) with file and line for an overlay's mistake; so do the others.
    """
    return tuple(_by_name(overlay.overlays()).values())


def names() -> list[str]:
    """The names of all components, in bake order."""
    return list(_by_name(overlay.overlays()))


def get(name: str) -> Component:
    """The component of that name. Raises KeyError if there is none."""
    return _by_name(overlay.overlays())[name]


def is_ours(name: str) -> bool:
    """Is it a component of AMI Kiln itself, not of an overlay?"""
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
