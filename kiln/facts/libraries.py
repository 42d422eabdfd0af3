"""Releases of the libraries on top of the driver: CUDA and the EFA installer."""

from __future__ import annotations

from typing import Any

from kiln.base import versions
from kiln.facts.tables import table


def cuda_release(version: str) -> str | None:
    """The known toolkit release that a version or series names (12.2 → 12.2.2), or None."""
    releases: dict[str, Any] = table("cuda")["releases"]
    if version in releases:
        return version
    return versions.newest(
        release for release in releases if versions.same(versions.series(release), version)
    )


def efa_plugin(installer: str) -> str | None:
    """The aws-ofi-nccl version in an EFA installer: from its own entry or the last one before."""
    releases: dict[str, dict[str, str]] = table("efa")["releases"]
    earlier = [v for v, entry in releases.items() if "ofi_nccl" in entry]
    last = versions.newest(v for v in earlier if versions.at_least(installer, v))
    return releases[last]["ofi_nccl"] if last else None


def first_with_plugin(arch: str, distro: str) -> str | None:
    """The first EFA installer that bundles aws-ofi-nccl on that processor and distribution; None
    if none does."""
    efa = table("efa")
    only_on = efa["bundles_plugin_on"].get(arch)
    return None if only_on and distro not in only_on else str(efa["bundles_plugin_from"][arch])


def bundles_plugin(installer: str, arch: str, distro: str) -> bool:
    """Does this EFA installer bundle aws-ofi-nccl on that processor and distribution?"""
    first = first_with_plugin(arch, distro)
    return first is not None and versions.at_least(installer, first)
