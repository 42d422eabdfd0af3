"""Contents of NVIDIA's CUDA repositories: drivers, toolkits and libraries, per distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from kiln import facts
from kiln.base import versions
from kiln.base.vocabulary import ARCH_OF_UNAME
from lab.vendors.mirror import catalog
from lab.vendors.mirror.catalog import Driver
from lab.vendors.mirror.repos import Repo
from lab.vendors.packages import driver, model
from lab.vendors.packages.model import File, Package

# NVIDIA's name of a machine → the `uname -m` name; sbsa is arm64 on servers.
MACHINES = {"x86_64": "x86_64", "sbsa": "aarch64"}
_TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
# From this version on the open module's DKMS name is nvidia; before it was nvidia-open.
# source: github:awslabs/amazon-eks-ami install-nvidia-driver.sh
_COMMON_DKMS_NAME = (570, 148)


def repository(name: str, machine: str) -> Repo | None:
    """The CUDA repository `name` for `machine` (x86_64 or sbsa); None when NVIDIA has none.

    It has the newest version of each branch or series and every version that the matrix names.
    """
    return _repository(name, machine, catalog.named())


@cache
def _repository(name: str, machine: str, wanted: frozenset[str]) -> Repo | None:
    settings = catalog.data()["cuda_repos"].get(name)
    arch = MACHINES.get(machine)
    if settings is None or arch is None:
        return None
    contents = holds(name, arch)
    if contents is None:
        return None
    shape = {"format": settings["format"], "arch": arch, "libdir": libdir(settings["format"], arch)}
    packages = _toolkits(contents, shape, wanted) + _libraries(name, contents, shape, wanted)
    services = {
        ("dcgm", "dcgm"): catalog.service("dcgm"),
        ("dcgm-exporter", "exporter"): catalog.dcgm_exporter(),
        ("nvlsm", "nvlsm"): facts.nvlsm_versions(),
    }
    for (recipe, variable), listed in services.items():
        for version in listed:
            packages += model.load(recipe, **{variable: version}, **shape)
    modules = []
    for driver_ in _drivers(contents, wanted) if settings.get("drivers", True) else []:
        members = driver_packages(driver_, settings["format"], settings.get("dist", ""), arch)
        packages += members
        modules.append((driver_, members))
    return Repo(
        name=f"cuda-{name}-{machine}",
        format=settings["format"],
        key=f"nvidia-cuda-{settings['format']}",
        packages=tuple(packages),
        modules=module_streams(modules, arch) if settings["format"] == "rpm" and modules else "",
    )


def libdir(format_: str, arch: str) -> str:
    """The folder of libraries: lib64 on RPM distributions, a folder per machine on Debian's."""
    return "/usr/lib64" if format_ == "rpm" else f"/usr/lib/{arch}-linux-gnu"


def driver_packages(version: Driver, format_: str, dist: str, arch: str) -> list[Package]:
    """All packages of one driver version."""
    kernel_modules = {"open": version.open, "proprietary": version.proprietary}
    older = tuple(map(int, version.version.split(".")[:2])) < _COMMON_DKMS_NAME
    names = {"open": "nvidia-open" if older else "nvidia", "proprietary": "nvidia"}
    folder = libdir(format_, arch)
    libraries = driver.libraries(version.version, arch)
    parts: dict[str, dict[str, File]] = {
        "shared": driver.shared(),
        "libraries": {f"{folder}/{name}": file for name, file in libraries.items()},
        "smi": driver.programs("/usr/bin/nvidia-smi"),
        "persistenced": driver.programs("/usr/bin/nvidia-persistenced"),
        "modprobe": driver.programs("/usr/bin/nvidia-modprobe"),
    }
    for kernel_module, exists in kernel_modules.items():
        if exists:
            source = driver.source(version.version, kernel_module, dkms_name=names[kernel_module])
            parts[f"source-{kernel_module}"] = source
    return model.load(
        f"nvidia-driver-{format_}",
        parts,
        driver=version.version,
        branch=version.branch,
        cuda=version.cuda,
        kernel_modules=kernel_modules,
        dkms_name=names,
        fabric_manager=driver.fabric_manager(version.branch),
        dist=dist,
        arch=arch,
        libdir=folder,
    )


def module_streams(versions: list[tuple[Driver, list[Package]]], arch: str) -> str:
    """modules.yaml: `<branch>-open` and `<branch>-dkms` for each branch, and the two newest.

    source: NVIDIA driver installation guide 620, kernel modules
    """
    streams: dict[str, list[str]] = {}
    for version, packages in versions:
        artifacts = [f"{p.name}-{p.epoch}:{p.version}-{p.release}.{p.arch}" for p in packages]
        for ending, exists in (("open", version.open), ("dkms", version.proprietary)):
            if exists:
                for stream in (f"{version.branch}-{ending}", f"{_LATEST[ending]}"):
                    streams.setdefault(stream, []).extend(artifacts)
    documents: list[dict[str, Any]] = [
        {
            "document": "modulemd",
            "version": 2,
            "data": {
                "name": "nvidia-driver",
                "stream": stream,
                "version": 20231114221320,
                "context": "kilnlab1",
                "arch": arch,
                "summary": f"AMI Kiln lab stand-in: driver stream {stream}",
                "description": "AMI Kiln lab stand-in",
                "license": {"module": ["MIT"]},
                "artifacts": {"rpms": artifacts},
            },
        }
        for stream, artifacts in sorted(streams.items())
    ]
    return yaml.safe_dump_all(documents, explicit_start=True, explicit_end=True, sort_keys=False)


_LATEST = {"open": "open-dkms", "dkms": "latest-dkms"}


@dataclass(frozen=True)
class Contents:
    """The CUDA series and driver branches of a repository: first and last, None for no limit."""

    cuda: tuple[str | None, str | None]
    drivers: tuple[str | None, str | None]

    def has_cuda(self, series: str) -> bool:
        first, last = (versions.series(limit) if limit else None for limit in self.cuda)
        return _between(series, first, last)

    def has_driver(self, branch: int) -> bool:
        return _between(str(branch), *self.drivers)


def holds(name: str, arch: str) -> Contents | None:
    """The contents of the CUDA repository `name` for a machine; None when NVIDIA has no such tree.

    source: kiln/facts/knowledge/cuda.yaml
    """
    entry = facts.table("cuda")["repos"].get(name)
    processor = ARCH_OF_UNAME[arch]
    if entry is None or processor not in entry["arches"]:
        return None
    drivers = entry.get("drivers", {})
    return Contents(
        cuda=(entry.get("first", {}).get(processor), entry.get("last")),
        drivers=(drivers.get("first"), drivers.get("last")),
    )


def _between(value: str, first: str | None, last: str | None) -> bool:
    return (first is None or versions.at_least(value, first)) and (
        last is None or versions.at_least(last, value)
    )


def _drivers(contents: Contents, wanted: frozenset[str]) -> list[Driver]:
    listed = catalog.repository_drivers()
    chosen = catalog.choose(listed, lambda version: version.split(".")[0], wanted)
    entries = [catalog.driver(version) for version in chosen]
    return [entry for entry in entries if entry and contents.has_driver(entry.branch)]


def _number(series: str) -> tuple[int, ...]:
    return tuple(int(part) for part in series.split("."))


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _toolkits(contents: Contents, shape: dict[str, str], wanted: frozenset[str]) -> list[Package]:
    chosen = catalog.choose(catalog.cuda(), _series, wanted)
    packages: list[Package] = []
    nvcc_of = catalog.cuda()
    for cuda in chosen:
        series, nvcc = _series(cuda), nvcc_of[cuda]
        if not contents.has_cuda(series):
            continue
        major, minor = _number(series)
        # The soname of all CUDA 11 libraries is 11.0, that of CUDA 12 is 12.
        soversion = "11.0" if major == 11 else str(major)
        packages += model.load(
            "cuda-toolkit",
            cuda=cuda,
            series=series,
            nvcc=nvcc,
            soversion=soversion,
            number=major * 1000 + minor * 10,
            target=_TARGETS[shape["arch"]],
            dev="devel" if shape["format"] == "rpm" else "dev",
            **shape,
        )
    return packages


def _libraries(
    name: str, contents: Contents, shape: dict[str, str], wanted: frozenset[str]
) -> list[Package]:
    packages: list[Package] = []
    builds = catalog.nccl()
    for nccl in catalog.choose(builds, _series, wanted):
        if _late(name, "nccl", nccl):
            continue
        major, minor, patch = _number(nccl)
        for series in builds[nccl]:
            if contents.has_cuda(series):
                packages += model.load(
                    "nccl",
                    nccl=nccl,
                    series=series,
                    major=major,
                    minor=minor,
                    patch=patch,
                    code=major * 10000 + minor * 100 + patch,
                    **shape,
                )
    for cudnn, entry in catalog.data()["cudnn"].items():
        major, minor, patch, _ = _number(cudnn)
        for series in entry["cuda"]:
            lacking = _lacks_cudnn(name, cudnn) or _late(name, "cudnn", cudnn)
            if contents.has_cuda(series) and not lacking:
                packages += model.load(
                    "cudnn",
                    cudnn=cudnn,
                    short=entry["short"],
                    series=series,
                    major=major,
                    minor=minor,
                    patch=patch,
                    **shape,
                )
    return packages


def _late(name: str, library: str, version: str) -> bool:
    """Return True if this release of a library was out before the repository had its first."""
    return any(
        (entry["repo"], entry["library"]) == (name, library)
        and versions.below(version, entry["first"])
        for entry in facts.table("cuda")["libraries_late"]
    )


def _lacks_cudnn(name: str, cudnn: str) -> bool:
    return any(
        entry["repo"] == name and versions.at_least(cudnn, entry["from"])
        for entry in facts.table("cuda")["cudnn_missing"]
    )
