"""The versions that the mirror has: from kiln/facts/knowledge, and `catalog.yaml` here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base import overlay, paths, versions
from kiln.base.errors import KilnError
from kiln.facts.tables import read_table
from kiln.matrix import load

_FILE = Path(__file__).resolve().parent / "catalog.yaml"


@dataclass(frozen=True)
class Driver:
    """A driver version: its branch, the CUDA version it reports, its kernel modules."""

    version: str
    branch: int
    cuda: str
    open: bool
    proprietary: bool


@cache
def data() -> dict[str, Any]:
    """The content of catalog.yaml; versions are text."""
    return read_table(_FILE)


def driver(version: str) -> Driver | None:
    """The facts about a driver version, None when NVIDIA has not released it."""
    branch = facts.branch(version)
    if branch is None or version not in (*branch.versions, *branch.betas):
        return None
    return Driver(
        version=version,
        branch=int(branch.name),
        cuda=branch.native_cuda,
        open="open" in branch.modules,
        proprietary="proprietary" in branch.modules,
    )


def repository_drivers() -> list[str]:
    """The driver versions in NVIDIA's package repositories (no betas), oldest first."""
    return _sorted(
        version
        for branch in facts.branches().values()
        if versions.at_least(branch.name, data()["oldest_branch_in_repositories"])
        for version in branch.versions
        if version not in data()["not_in_repositories"]
    )


def cuda() -> dict[str, str]:
    """CUDA release, oldest first → version of its nvcc."""
    return {
        release: data()["nvcc"].get(release, f"{versions.series(release)}.0")
        for release in _sorted(facts.table("cuda")["releases"])
    }


def nccl() -> dict[str, list[str]]:
    """NCCL version with known packages, oldest first → the CUDA series of its packages."""
    table: dict[str, dict[str, Any]] = facts.table("nccl")["versions"]
    return {
        version: [_series(version, cuda) for cuda in table[version]["cuda"]]
        for version in _sorted(table)
        if table[version]["cuda"]
    }


def _series(nccl: str, cuda: str) -> str:
    return str(data()["nccl_series"][nccl]) if cuda.endswith(".x") else cuda


def service(name: str) -> list[str]:
    """The versions of dcgm, container_toolkit or gdrcopy, oldest first."""
    return _sorted(facts.table("services")[name]["versions"])


def aws_ofi_nccl() -> list[str]:
    """The releases of aws-ofi-nccl by the version in their tags: those that EFA installers bundle,
    and the catalog's. Tags have -aws up to 1.13, as in downloads.yaml."""
    bundled = [entry["ofi_nccl"] for entry in efa().values() if "ofi_nccl" in entry]
    return [
        f"{version}-aws" if versions.below(version, "1.14.0") else version
        for version in _sorted({*bundled, *data()["aws_ofi_nccl"]})
    ]


def cloudwatch_agent() -> list[str]:
    """The CloudWatch agent's builds by their folders in S3, oldest first."""
    builds = facts.table("services")["cloudwatch_agent"]["builds"].values()
    return _sorted({*(entry["build"] for entry in builds), *data()["cloudwatch_agent"]})


def ssm_agent() -> list[str]:
    """The Systems Manager agent's releases in S3, oldest first."""
    pinned = [row["version"] for row in facts.table("downloads")["downloads"]["SSM_AGENT"]]
    return _sorted({*pinned, *data()["ssm_agent"]})


def dcgm_exporter() -> list[str]:
    """The versions of dcgm-exporter, oldest first."""
    return _sorted(facts.table("services")["dcgm_exporter"]["pairs"])


def efa() -> dict[str, dict[str, str]]:
    """EFA installer, oldest first → what it changed, as in `releases` of efa.yaml."""
    releases: dict[str, dict[str, str]] = facts.table("efa")["releases"]
    return {version: releases[version] for version in _sorted(releases)}


def efa_distros() -> dict[str, tuple[str | None, str | None]]:
    """Distribution → first and last EFA installer that supports it, None for no limit."""
    return {
        name: (window.get("first"), window.get("last"))
        for name, window in facts.table("efa")["os"].items()
    }


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=versions.key)


def named() -> frozenset[str]:
    """The versions that the matrix names now; empty when it cannot be read."""
    files = [paths.matrix_file(), *overlay.own_files("amis.yaml")]
    return _named(tuple((path, path.stat().st_mtime_ns) for path in files if path.exists()))


@cache
def _named(_changed: tuple[tuple[Path, int], ...]) -> frozenset[str]:
    try:
        recipes = load.load_recipes()
    except KilnError:
        return frozenset()
    fields = ("driver", "cuda", "cudnn", "nccl", "dcgm", "container_toolkit", "cloudwatch_agent")
    return frozenset(str(value) for r in recipes for f in fields if (value := getattr(r, f)))


def choose(
    versions: Iterable[str], group: Callable[[str], str], wanted: frozenset[str]
) -> list[str]:
    """The newest version of each group, and all wanted versions.

    A repository with every published version would take a minute to make.
    """
    newest: dict[str, str] = {}
    ordered = list(versions)
    for version in ordered:
        newest[group(version)] = version
    return [v for v in ordered if v in wanted or newest[group(v)] == v]
