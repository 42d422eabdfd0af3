"""The driver's .run files, and fabric manager's redistributable archives."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
from functools import partial
from pathlib import Path

from lab.vendors.mirror import catalog, cuda_repository
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import deb, driver, elf, model
from lab.vendors.packages.model import File

_PAYLOADS = model.HERE / "payloads" / "runfile"
_SOURCE = "/usr/src/nvidia-{version}/"


def run_file(version: str, arch: str, target: Path) -> bool:
    """Write NVIDIA-Linux-<arch>-<version>.run; False when the catalog has no such driver."""
    facts = catalog.driver(version)
    if facts is None:
        return False
    variables = {
        "version": version,
        "arch": arch,
        "branch": facts.branch,
        "cuda": facts.cuda,
        "proprietary": "yes" if facts.proprietary else "no",
        "open": "yes" if facts.open else "no",
    }
    uninstall = model.fill((_PAYLOADS / "nvidia-uninstall").read_text(), variables)
    installer = model.fill((_PAYLOADS / "nvidia-installer").read_text(), variables)
    files = {"nvidia-installer": File(installer.encode(), 0o755)}
    system = {
        **driver.shared(),
        **driver.programs(*driver.PROGRAMS, "/usr/bin/kiln-lab-gpu"),
        "/usr/bin/nvidia-uninstall": File(uninstall.encode(), 0o755),
        "/etc/OpenCL/vendors/nvidia.icd": File(b"libnvidia-opencl.so.1\n"),
    }
    for path, file in system.items():
        files[f"files{path}"] = file
    for name, file in driver.libraries(version, arch).items():
        files[f"lib/{name}"] = file
    for kernel_module in ("proprietary", "open"):
        if getattr(facts, kernel_module):
            prefix = _SOURCE.format(version=version)
            for path, file in driver.source(version, kernel_module).items():
                files[f"source-{kernel_module}/{path.removeprefix(prefix)}"] = file
    header = model.fill((_PAYLOADS / "header.sh").read_text(), variables)
    description = json.dumps({"what": model.STAND_IN, "driver": version, "arch": arch})
    files["kiln-lab.json"] = File(description.encode())
    target.write_bytes(header.encode() + deb.tar_gz(files))
    return True


@route(
    r"https://us\.download\.nvidia\.com/tesla/(?P<version>[0-9.]+)/"
    r"NVIDIA-Linux-(?P<arch>x86_64|aarch64)-(?P=version)\.run"
)
def _run_file(site: Site, url: re.Match[str]) -> Path | None:
    return site.made(
        f"NVIDIA-Linux-{url['arch']}-{url['version']}.run",
        partial(run_file, url["version"], url["arch"]),
    )


# Of the redistributables, fabric manager, with sbsa archives from 515 on.
_REDIST = r"https://developer\.download\.nvidia\.com/compute/(?:nvidia-driver|cuda)/redist"
_MACHINES = {f"linux-{name}": machine for name, machine in cuda_repository.MACHINES.items()}
_FIRST_SBSA = 515


def fabric_manager(version: str, platform: str, target: Path) -> bool:
    """Write fabricmanager-<platform>-<version>-archive.tar.xz; False when there is none."""
    facts = catalog.driver(version)
    if facts is None or (platform == "linux-sbsa" and facts.branch < _FIRST_SBSA):
        return False
    top = f"fabricmanager-{platform}-{version}-archive"
    payload: dict[str, File] = {}
    for tree in driver.fabric_manager(facts.branch):
        payload |= model.tree(tree, {"version": version})
    programs = [path for path in payload if path.startswith("/usr/bin/")]
    files = {
        **{f"{top}/bin/{path.rsplit('/', 1)[1]}": payload[path] for path in programs},
        f"{top}/etc/fabricmanager.cfg": payload["/usr/share/nvidia/nvswitch/fabricmanager.cfg"],
        f"{top}/systemd/nvidia-fabricmanager.service": payload[
            "/usr/lib/systemd/system/nvidia-fabricmanager.service"
        ],
        f"{top}/lib/libnvfm.so.1": File(
            elf.shared_library("libnvfm.so.1", _MACHINES[platform]), 0o755
        ),
        f"{top}/share/nvidia/nvswitch/dgxa100_hgxa100_topology": File(b"AMI Kiln lab stand-in\n"),
        f"{top}/LICENSE.txt": File(b"AMI Kiln lab stand-in\n"),
    }
    target.write_bytes(tar_xz(files))
    return True


def tar_xz(files: dict[str, File]) -> bytes:
    """A reproducible .tar.xz, the format of NVIDIA's redistributables."""
    buffer = io.BytesIO()
    with lzma.open(buffer, "wb", preset=0) as packed:
        packed.write(gzip.decompress(deb.tar_gz(files)))
    return buffer.getvalue()


@route(
    rf"{_REDIST}/fabricmanager/(?P<platform>linux-x86_64|linux-sbsa)/"
    r"fabricmanager-(?P=platform)-(?P<version>[0-9.]+)-archive\.tar\.xz"
)
def _fabric_manager(site: Site, url: re.Match[str]) -> Path | None:
    return site.made(
        f"fabricmanager-{url['platform']}-{url['version']}-archive.tar.xz",
        partial(fabric_manager, url["version"], url["platform"]),
    )
