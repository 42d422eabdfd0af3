"""nvidia.github.io/libnvidia-container: the container toolkit's repositories."""

from __future__ import annotations

import re
from pathlib import Path

from lab.mirror import catalogue, nvidia_cuda
from lab.mirror.repos import Repo
from lab.mirror.site import Site, route
from lab.packages import model

_BASE = r"https://nvidia\.github\.io/libnvidia-container"
_KEY = "nvidia-container-toolkit"
_MACHINES = {"x86_64": "x86_64", "aarch64": "aarch64", "amd64": "x86_64", "arm64": "aarch64"}


def repository(format_: str, arch: str) -> Repo:
    """The stable repository for `rpm` or `deb`; `arch` is a `uname -m` name."""
    folder = nvidia_cuda.libdir(format_, arch)
    packages = [
        package
        for version in catalogue.service("container_toolkit")
        for package in model.load(
            "container-toolkit", toolkit=version, format=format_, arch=arch, libdir=folder
        )
    ]
    return Repo(f"container-toolkit-{format_}-{arch}", format_, _KEY, tuple(packages))


@route(rf"{_BASE}/gpgkey")
def _key(site: Site, _: re.Match[str]) -> Path | None:
    return site.text("libnvidia-container.gpgkey", site.keyring.public(_KEY))


@route(rf"{_BASE}/stable/rpm/nvidia-container-toolkit\.repo")
def _definition(site: Site, _: re.Match[str]) -> Path | None:
    base = "https://nvidia.github.io/libnvidia-container"
    lines = [
        "[nvidia-container-toolkit]",
        "name=nvidia-container-toolkit",
        f"baseurl={base}/stable/rpm/$basearch",
        "repo_gpgcheck=1",
        "gpgcheck=0",
        "enabled=1",
        f"gpgkey={base}/gpgkey",
    ]
    return site.text("nvidia-container-toolkit.repo", "\n".join([*lines, ""]))


@route(rf"{_BASE}/stable/(?P<format>rpm|deb)/(?P<machine>x86_64|aarch64|amd64|arm64)/(?P<path>.+)")
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    if (url["format"] == "deb") != (url["machine"] in ("amd64", "arm64")):
        return None
    return site.repo(repository(url["format"], _MACHINES[url["machine"]]), url["path"])
