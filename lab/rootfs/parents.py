"""Parts that AWS's own pipelines put on top of a distribution: `basefiles/parents.yaml`.

A parent is named `<distribution>+<kind>`: al2023+eks. Its root filesystem is the distribution's
with packages, files, units and version locks laid over it.
"""

from __future__ import annotations

import tempfile
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base import versions, yaml_files
from kiln.base.errors import KilnError, did_you_mean
from lab.base.shell import run
from lab.rootfs import distros
from lab.vendors.mirror import catalog, cuda_repository, efa
from lab.vendors.packages import model, rpm, system
from lab.vendors.packages.model import File, Package

SEPARATOR = "+"
_LOCKS = "etc/dnf/plugins/versionlock.list"


@cache
def kinds() -> dict[str, dict[str, Any]]:
    """The kinds of parents, by name."""
    content: dict[str, Any] = yaml_files.read_plain(distros.FILES / "parents.yaml")
    entries: dict[str, dict[str, Any]] = content["parents"]
    return entries


def split(name: str) -> tuple[str, str]:
    """A parent's distribution and kind; the kind is empty for a plain distribution.

    Raises KilnError when there is no such kind.
    """
    distro, _, kind = name.partition(SEPARATOR)
    if kind and kind not in kinds():
        raise KilnError(f"the lab has no parent of kind {kind!r}", hint=did_you_mean(kind, kinds()))
    return distro, kind


def folder(kind: str) -> Path:
    """The files of a kind."""
    return distros.FILES / "parents" / str(kinds()[kind]["tree"])


def digest(kind: str, distro_id: str, arch: str) -> str:
    """A digest of the packages of a kind that are in no repository of the distribution."""
    return "".join(package.digest() for package in _added(kind, distro_id, arch))


def install(kind: str, distro_id: str, arch: str, root: Path) -> None:
    """Install a kind's packages in a base, enable its units and write its version locks.

    `arch` is a `uname -m` name. Raises CommandError.
    """
    entry = kinds()[kind]
    wanted = set(entry["packages"])
    packages = [p for p in system.amazon_linux(distro_id, arch) if p.name in wanted]
    if kernel := entry.get("kernel"):
        packages += system.kernel(distro_id, arch, kernel)
        run("chroot", str(root), "rpm", "--erase", "--nodeps", "kernel")
    _install_rpms(packages + _added(kind, distro_id, arch), root)
    for unit in entry["enable"]:
        run("chroot", str(root), "systemctl", "--quiet", "enable", unit)
    if entry.get("lock"):
        _lock(entry["lock"], root)


def _install_rpms(packages: list[Package], root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root / "var/tmp") as temporary:
        built = rpm.build(packages, Path(temporary))
        inside = ["/" + str(path.relative_to(root)) for path in built]
        run("chroot", str(root), "rpm", "--install", "--nosignature", "--nodeps", *inside)


def _added(kind: str, distro_id: str, arch: str) -> list[Package]:
    """The packages of a kind that are in no repository of the distribution."""
    entry = kinds()[kind]
    packages = _own(kind, distro_id, arch) + _nvidia(entry, distro_id, arch)
    return packages + (_efa(entry, arch) if "efa" in entry else [])


def _own(kind: str, distro_id: str, arch: str) -> list[Package]:
    recipes = kinds()[kind].get("recipes", [])
    dist = system.dist(distro_id) if recipes else ""
    return [package for recipe in recipes for package in model.load(recipe, dist=dist, arch=arch)]


# What a driver's packages have for the kernel module that is not open.
_PROPRIETARY = ("kmod-nvidia-latest-dkms", "cuda-drivers")


def _nvidia(entry: dict[str, Any], distro_id: str, arch: str) -> list[Package]:
    """NVIDIA's packages, as its repositories have them: of the driver those of the open module."""
    release = catalog.driver(entry.get("driver", ""))
    if release is None:
        return []
    shape = {"format": "rpm", "arch": arch, "libdir": cuda_repository.libdir("rpm", arch)}
    driver = cuda_repository.driver_packages(release, "rpm", system.dist(distro_id), arch)
    parts = ("core", f"cuda{release.cuda.split('.')[0]}")
    dcgm = {f"datacenter-gpu-manager-4-{part}" for part in parts}
    # From 4.7 on core is empty, and its parts are packages.
    dcgm |= {"libdcgm", "dcgmi", "nv-hostengine"}
    packages = [
        *(package for package in driver if package.name not in _PROPRIETARY),
        *(p for p in model.load("dcgm", dcgm=entry["dcgm"], **shape) if p.name in dcgm),
    ]
    if "nvlsm" in entry:
        packages += model.load("nvlsm", nvlsm=entry["nvlsm"], **shape)
    return packages


def _efa(entry: dict[str, Any], arch: str) -> list[Package]:
    """Return the packages that EFA's installer leaves: its list, and its packages unless it ran
    with --minimal."""
    newest = max(facts.table("efa")["releases"], key=versions.key)
    version = newest if entry["efa"] == "newest" else entry["efa"]
    packages: list[Package] = []
    bundled = efa.contents(version)
    if not entry.get("efa_minimal") and bundled is not None:
        packages = efa.packages(version, bundled, "rpm", arch)
    names = "".join(f"{package.name}\n" for package in packages) or "rdma-core\n"
    listing = f"# EFA installer version: {version}\n# Packages installed:\n{names}"
    files = {"/opt/amazon/efa_installed_packages": File(listing.encode())}
    note = Package(
        name="kiln-lab-efa-list",
        version=version,
        release="1",
        arch="noarch",
        summary=f"{model.STAND_IN}: the list that EFA's installer leaves",
        files=files,
    )
    return [*packages, note]


def _lock(patterns: list[str], root: Path) -> None:
    """Write dnf's version locks for the installed packages that a pattern names."""
    form = "%{NAME} %{NAME}-%{EPOCHNUM}:%{VERSION}-%{RELEASE}.*\\n"
    listed = run("chroot", str(root), "rpm", "-qa", "--qf", form).splitlines()
    lines = [
        line.split(" ", 1)[1]
        for line in sorted(listed)
        if any(fnmatchcase(line.split(" ", 1)[0], pattern) for pattern in patterns)
    ]
    path = root / _LOCKS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
