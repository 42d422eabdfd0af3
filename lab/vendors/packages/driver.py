"""The files of an NVIDIA driver, for all its formats: .run file, RPMs and Debian packages."""

from __future__ import annotations

import hashlib
from functools import cache

from kiln import facts
from lab.vendors.packages import bytecode, elf, model
from lab.vendors.packages.model import File
from lab.vendors.standins.nvidia_smi import install

# DT_SONAME → stem of the file name, which is <stem>.<driver version>.
# source: file list of NVIDIA's installer manifests and of Debian's driver packages
LIBRARIES = {
    "libcuda.so.1": "libcuda.so",
    "libnvidia-ml.so.1": "libnvidia-ml.so",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so",
    "libnvidia-nvvm.so.4": "libnvidia-nvvm.so",
    "libnvidia-opencl.so.1": "libnvidia-opencl.so",
    "libnvidia-cfg.so.1": "libnvidia-cfg.so",
    "libnvcuvid.so.1": "libnvcuvid.so",
    "libnvidia-encode.so.1": "libnvidia-encode.so",
    "libcudadebugger.so.1": "libcudadebugger.so",
}
PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-modprobe")
# Fabric manager has a package of its own; its programs check versions and then run these.
FABRIC_MANAGER = ("/usr/bin/nv-fabricmanager", "/usr/bin/nvidia-fabricmanager-start.sh")
# The branch from which fabric manager's package has a start script.
# source: github:spectrocloud/CanvOS pull request 700 ("570+")
FABRIC_START = 570


def libraries(version: str, arch: str) -> dict[str, File]:
    """Stub libraries with their links, by file name; the folder depends on the distribution."""
    files: dict[str, File] = {}
    for soname, stem in LIBRARIES.items():
        files[f"{stem}.{version}"] = File(elf.shared_library(soname, arch), 0o755)
        files[soname] = File(link=f"{stem}.{version}")
        files[stem] = File(link=soname)
    return files


@cache
def shared() -> dict[str, File]:
    """The files behind the stand-in programs, below /usr/lib/kiln-lab."""
    payload = _payload()
    files = {path: file for path, file in payload.items() if path.startswith(install.LIB)}
    for path in (*FABRIC_MANAGER, "/usr/bin/kiln-lab-gpu"):
        name = f"/usr/lib/kiln-lab/bin/{path.rsplit('/', 1)[1]}"
        files[name] = payload[path]
    return bytecode.with_compiled(files)


def programs(*paths: str) -> dict[str, File]:
    """The stand-in programs for these paths."""
    return {path: _payload()[path] for path in paths}


def fabric_manager(branch: int) -> list[str]:
    """The payloads of fabric manager's package of a branch."""
    return ["fabricmanager", *(["fabricmanager-start"] if branch >= FABRIC_START else [])]


@cache
def _payload() -> dict[str, File]:
    return {path: File(file.content, file.mode) for path, file in install.payload().items()}


def source(version: str, kernel_module: str, *, dkms_name: str = "nvidia") -> dict[str, File]:
    """The DKMS source tree of a kernel module (open, proprietary), below /usr/src/nvidia-<version>.

    `srcversion` depends on both, because the real one changes with the source.
    """
    folder = f"/usr/src/nvidia-{version}"
    token = hashlib.sha256(f"{version} {kernel_module}".encode()).hexdigest()[:24].upper()
    files = model.tree(
        "nvidia-dkms",
        {
            "version": version,
            "license": "NVIDIA" if kernel_module == "proprietary" else "Dual MIT/GPL",
            "srcversion": token,
            "dkms_name": dkms_name,
        },
    )
    files[f"{folder}/refuses"] = File("".join(refusals(version)).encode())
    return files


def refusals(version: str) -> list[str]:
    """A line `<kernel> <reason>` for each kernel that this driver does not compile for."""
    branch = version.split(".", 1)[0]
    lines = []
    for cause in facts.table("kernel_builds")["causes"]:
        last = cause["drivers"].get(branch)
        if last and _number(version) <= _number(str(last)):
            lines += [f"{kernel} {cause['what']}\n" for kernel in cause["kernels"]]
    return lines


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
