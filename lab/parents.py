"""What AWS's own pipelines put on top of a distribution: `basefiles/parents.yaml`.

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
from kiln.base import plain_yaml, versions
from kiln.base.errors import KilnError, did_you_mean
from lab import distros
from lab.packages import model, rpm, system
from lab.packages.model import File, Package
from lab.shell import run

SEPARATOR = "+"
_LOCKS = "etc/dnf/plugins/versionlock.list"


@cache
def kinds() -> dict[str, dict[str, Any]]:
    """The kinds of parents, by name."""
    content: dict[str, Any] = plain_yaml.read_plain(distros.FILES / "parents.yaml")
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
    return "".join(package.digest() for package in _own(kind, distro_id, arch))


def install(kind: str, distro_id: str, arch: str, root: Path) -> None:
    """Install a kind's packages in a base, enable its units and write its version locks.

    `arch` is a `uname -m` name. Raises CommandError.
    """
    entry = kinds()[kind]
    wanted = set(entry["packages"])
    packages = [p for p in system.amazon_linux(distro_id, arch) if p.name in wanted]
    packages += _own(kind, distro_id, arch)
    if entry.get("efa") == "minimal":
        packages.append(_minimal_efa())
    with tempfile.TemporaryDirectory(dir=root / "var/tmp") as temporary:
        built = rpm.build(packages, Path(temporary))
        inside = ["/" + str(path.relative_to(root)) for path in built]
        run("chroot", str(root), "rpm", "--install", "--nosignature", "--nodeps", *inside)
    for unit in entry["enable"]:
        run("chroot", str(root), "systemctl", "--quiet", "enable", unit)
    if entry.get("lock"):
        _lock(entry["lock"], root)


def _own(kind: str, distro_id: str, arch: str) -> list[Package]:
    dist = system.dist(distro_id)
    return [
        package
        for recipe in kinds()[kind].get("recipes", [])
        for package in model.load(recipe, dist=dist, arch=arch)
    ]


def _minimal_efa() -> Package:
    """What `efa_installer.sh --minimal` leaves: its list, and no libfabric."""
    newest = max(facts.table("efa")["releases"], key=versions.key)
    listing = f"# EFA installer version: {newest}\n# Packages installed:\nrdma-core\n"
    return Package(
        name="kiln-lab-efa-minimal",
        version=newest,
        release="1",
        arch="noarch",
        summary=f"{model.STAND_IN}: an EFA installed with --minimal",
        files={"/opt/amazon/efa_installed_packages": File(listing.encode())},
    )


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
