"""nvidia.github.io/libnvidia-container: the container toolkit's repositories."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.base.vocabulary import UNAME_ARCH, UNAME_OF_DEB
from lab.vendors.mirror import catalog, cuda_repository
from lab.vendors.mirror.repos import Repo
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import model

_BASE = r"https://nvidia\.github\.io/libnvidia-container"
_KEY = "nvidia-container-toolkit"
# RPM's words for a processor, which are the kernel's, and Debian's → the kernel's.
_MACHINES = {**{name: name for name in UNAME_ARCH.values()}, **UNAME_OF_DEB}


def repository(format_: str, arch: str) -> Repo:
    """The stable repository for `rpm` or `deb`; `arch` is a `uname -m` name."""
    folder = cuda_repository.libdir(format_, arch)
    packages = [
        package
        for version in catalog.service("container_toolkit")
        for package in model.load(
            "container-toolkit", toolkit=version, format=format_, arch=arch, libdir=folder
        )
    ]
    return Repo(f"container-toolkit-{format_}-{arch}", format_, _KEY, tuple(packages))


def _fits(machine: str, format_: str) -> bool:
    """Return True if this is the format's name of a processor."""
    return (format_ == "deb") == (machine in ("amd64", "arm64"))


@route(rf"{_BASE}/gpgkey")
def _key(site: Site, _: re.Match[str]) -> Path | None:
    return site.text("libnvidia-container.gpgkey", site.keyring.public(_KEY))


@route(rf"{_BASE}/stable/(?P<format>rpm|deb)/(?P<machine>x86_64|aarch64|amd64|arm64)/(?P<path>.+)")
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    if not _fits(url["machine"], url["format"]):
        return None
    return site.repo(repository(url["format"], _MACHINES[url["machine"]]), url["path"])
