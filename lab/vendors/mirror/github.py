"""github.com: source releases that provisioners compile."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from lab.vendors.mirror import catalog
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import deb, model
from lab.vendors.packages.model import File


def source(payload: str, version: str, top: str) -> Callable[[Path], bool]:
    """A function that writes a source archive of `payloads/<payload>/`, below the folder `top`."""

    def make(target: Path) -> bool:
        series = ".".join(version.split(".")[:2])
        files = model.tree(payload, {"version": version, "series": series})
        if "/configure" in files:
            files["/configure"] = File(files["/configure"].content, 0o755)
        target.write_bytes(deb.tar_gz({f"{top}{path}": file for path, file in files.items()}))
        return True

    return make


@route(
    r"https://github\.com/aws/aws-ofi-nccl/releases/download/v(?P<version>[^/]+)/"
    r"aws-ofi-nccl-(?P=version)\.tar\.gz"
)
def _aws_ofi_nccl(site: Site, url: re.Match[str]) -> Path | None:
    version = url["version"]
    if version not in catalog.aws_ofi_nccl():
        return None
    name = f"aws-ofi-nccl-{version}"
    return site.made(f"{name}.tar.gz", source("ofi-nccl-source", version, name))


@route(
    r"https://github\.com/NVIDIA/gdrcopy/archive/refs/tags/v(?P<version>[0-9.]+)"
    r"(?:/gdrcopy-(?P=version))?\.tar\.gz"
)
def _gdrcopy(site: Site, url: re.Match[str]) -> Path | None:
    version = url["version"]
    if version not in catalog.service("gdrcopy"):
        return None
    name = f"gdrcopy-{version}"
    return site.made(f"{name}.tar.gz", source("gdrcopy-source", version, name))


@route(r"https://github\.com/NVIDIA/nccl-tests/archive/refs/tags/v(?P<version>[0-9.]+)\.tar\.gz")
def _nccl_tests(site: Site, url: re.Match[str]) -> Path | None:
    version = url["version"]
    if version not in catalog.data()["nccl_tests"]:
        return None
    name = f"nccl-tests-{version}"
    return site.made(f"{name}.tar.gz", source("nccl-tests-source", version, name))
