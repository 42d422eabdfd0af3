"""efa-installer.amazonaws.com: the installer's archives, with signatures and key."""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import partial
from pathlib import Path

from lab.mirror import catalogue
from lab.mirror.site import Site, route
from lab.packages import deb, model, rpm
from lab.packages.model import File

_PAYLOAD = model.HERE / "payloads" / "efa-installer"
_MACHINES = ("x86_64", "aarch64")
_FIELDS = ("libfabric", "rdma_core", "driver", "ofi_nccl")


def contents(version: str) -> dict[str, str] | None:
    """What an installer brings, gaps filled from the releases before it; None when unknown."""
    known: dict[str, str] = {}
    for release, facts in catalogue.data()["efa"].items():
        known.update({name: facts[name] for name in _FIELDS if facts[name]})
        if release == version:
            return known
    return None


def installer(version: str, target: Path) -> bool:
    """Write aws-efa-installer-<version>.tar.gz; False when the catalogue has none."""
    known = contents(version)
    if known is None:
        return False
    top = "aws-efa-installer"
    script = model.fill((_PAYLOAD / "efa_installer.sh").read_text(), {"efa": version})
    supported = "".join(f"{distro}\n" for distro in _supported(version))
    files = {
        f"{top}/efa_installer.sh": File(script.encode(), 0o755),
        f"{top}/supported": File(supported.encode()),
    }
    folder = Path(tempfile.mkdtemp(prefix="kiln-efa-"))
    try:
        for format_, build in (("rpm", rpm.build), ("deb", deb.build)):
            names = set()
            for machine in _MACHINES:
                packages = _packages(known, format_, machine)
                names |= {package.name for package in packages}
                for package in build(packages, folder / format_ / machine):
                    files[f"{top}/packages/{machine}/{package.name}"] = File(package.read_bytes())
            listing = "".join(f"{name}\n" for name in sorted(names))
            files[f"{top}/{format_}.names"] = File(listing.encode())
    finally:
        shutil.rmtree(folder)
    target.write_bytes(deb.tar_gz(files))
    return True


def _packages(known: dict[str, str], format_: str, machine: str) -> list[model.Package]:
    lib = "lib64" if format_ == "rpm" else "lib"
    plugin_lib = "lib64" if format_ == "rpm" else f"lib/{machine}-linux-gnu"
    return model.load(
        "efa",
        libfabric=known["libfabric"],
        rdma_core=known["rdma_core"],
        driver=known["driver"],
        ofi_nccl=known.get("ofi_nccl"),
        format=format_,
        arch=machine,
        lib=lib,
        plugin_lib=plugin_lib,
    )


def _supported(version: str) -> list[str]:
    def number(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    return [
        distro
        for distro, (first, last) in catalogue.data()["efa_support"].items()
        if number(first) <= number(version) and (last is None or number(version) <= number(last))
    ]


_BASE = r"https://efa-installer\.amazonaws\.com"


@route(rf"{_BASE}/aws-efa-installer\.key")
def _key(site: Site, _: re.Match[str]) -> Path | None:
    return site.text("aws-efa-installer.key", site.keyring.public("efa"))


@route(rf"{_BASE}/aws-efa-installer-(?P<version>[\d.]+|latest)\.tar\.gz(?P<sig>\.sig)?")
def _archive(site: Site, url: re.Match[str]) -> Path | None:
    version = url["version"]
    if version == "latest":
        version = list(catalogue.data()["efa"])[-1]
    name = f"aws-efa-installer-{version}.tar.gz"
    file = site.made(name, partial(installer, version))
    return site.signature("efa", file) if url["sig"] else file
