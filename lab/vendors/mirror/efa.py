"""efa-installer.amazonaws.com: the installer's archives, with signatures and key."""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import partial
from pathlib import Path

from kiln import facts
from kiln.base import versions
from kiln.base.vocabulary import ARCH_OF_UNAME
from lab.vendors.mirror import catalog
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import deb, model, rpm
from lab.vendors.packages.model import File

_PAYLOAD = model.HERE / "payloads" / "efa-installer"
_FIELDS = ("libfabric", "rdma_core", "driver", "ofi_nccl")


def contents(version: str) -> dict[str, str] | None:
    """The versions in an installer, gaps filled from earlier releases; None when unknown."""
    bundled: dict[str, str] = {}
    for release, changed in catalog.efa().items():
        bundled.update({name: changed[name] for name in _FIELDS if name in changed})
        if release == version:
            # The contents of the oldest installers are not known.
            return bundled if {"libfabric", "rdma_core", "driver"} <= bundled.keys() else None
    return None


def installer(version: str, target: Path) -> bool:
    """Write aws-efa-installer-<version>.tar.gz; False when the catalog has none."""
    bundled = contents(version)
    if bundled is None:
        return False
    top = "aws-efa-installer"
    script = model.fill((_PAYLOAD / "efa_installer.sh").read_text(), {"efa": version})
    supported = "".join(f"{distro}\n" for distro in _supported(version))
    files = {
        f"{top}/efa_installer.sh": File(script.encode(), 0o755),
        f"{top}/supported": File(supported.encode()),
    }
    for machine in ARCH_OF_UNAME:
        names = "".join(f"{distro}\n" for distro in with_plugin(version, machine))
        files[f"{top}/plugin.{machine}"] = File(names.encode())
    folder = Path(tempfile.mkdtemp(prefix="kiln-efa-"))
    try:
        for format_, build in (("rpm", rpm.build), ("deb", deb.build)):
            installed = set()
            for machine in ARCH_OF_UNAME:
                members = packages(version, bundled, format_, machine)
                installed |= {package.name for package in members}
                for file in build(members, folder / format_ / machine):
                    files[f"{top}/packages/{machine}/{file.name}"] = File(file.read_bytes())
            listing = "".join(f"{name}\n" for name in sorted(installed))
            files[f"{top}/{format_}.names"] = File(listing.encode())
    finally:
        shutil.rmtree(folder)
    target.write_bytes(deb.tar_gz(files))
    return True


def packages(
    version: str, bundled: dict[str, str], format_: str, machine: str
) -> list[model.Package]:
    """The packages in an installer for a machine; `bundled` is the result of `contents`."""
    lib = "lib64" if format_ == "rpm" else "lib"
    plugin_lib = "lib64" if format_ == "rpm" else f"lib/{machine}-linux-gnu"
    return model.load(
        "efa",
        libfabric=bundled["libfabric"],
        rdma_core=bundled["rdma_core"],
        driver=bundled["driver"],
        ofi_nccl=bundled.get("ofi_nccl") if with_plugin(version, machine) else None,
        format=format_,
        arch=machine,
        lib=lib,
        plugin_lib=plugin_lib,
    )


def _supported(version: str) -> list[str]:
    return [
        distro
        for distro, (first, last) in catalog.efa_distros().items()
        if (first is None or versions.at_least(version, first))
        and (last is None or versions.at_least(last, version))
    ]


def with_plugin(version: str, machine: str) -> list[str]:
    """The distributions for which this installer has aws-ofi-nccl for that machine."""
    arch = ARCH_OF_UNAME[machine]
    return [distro for distro in _supported(version) if facts.bundles_plugin(version, arch, distro)]


_BASE = r"https://efa-installer\.amazonaws\.com"


@route(rf"{_BASE}/aws-efa-installer\.key")
def _key(site: Site, _: re.Match[str]) -> Path | None:
    return site.text("aws-efa-installer.key", site.keyring.public("efa"))


@route(rf"{_BASE}/aws-efa-installer-(?P<version>[0-9.]+|latest)\.tar\.gz(?P<sig>\.sig)?")
def _archive(site: Site, url: re.Match[str]) -> Path | None:
    version = url["version"]
    if version == "latest":
        version = list(catalog.efa())[-1]
    name = f"aws-efa-installer-{version}.tar.gz"
    file = site.made(name, partial(installer, version))
    return site.signature("efa", file) if url["sig"] else file
