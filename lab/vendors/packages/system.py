"""The distributions' own packages: those installed in a base and those in their repositories."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import RootModel

from kiln.base import overlay, yaml_files
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import is_compiled
from kiln.base.recipe import Distro
from kiln.base.vocabulary import Form
from lab.base.shell import run
from lab.vendors.packages import deb, model, rpm
from lab.vendors.packages.model import Package

_FILE = model.HERE / "amazon-linux.yaml"
_Version = Form(r"^[0-9][A-Za-z0-9.+~_-]*$", "a package's version such as 1.7.1")
# Distribution → package → version.
_StandIns = RootModel[dict[str, dict[str, Annotated[str, _Version]]]]
_INSTALLED_TOO = ("system-release", "amazon-ssm-agent")


@cache
def _catalog() -> dict[str, Any]:
    return _distros(_FILE)


@cache
def _ubuntu_catalog() -> dict[str, Any]:
    return _distros(model.HERE / "ubuntu.yaml")


def _distros(file: Path) -> dict[str, Any]:
    """The distributions of a file, without its `source` and `confirmed`."""
    content: dict[str, Any] = yaml_files.read_plain(file, versions_as_text=True)
    return {name: entry for name, entry in content.items() if isinstance(entry, dict)}


def amazon_linux(distro_id: str, arch: str, release: str | None = None) -> list[Package]:
    """All packages in the repositories of al2 or al2023.

    `release` is a state of al2023's repository (default: the parent AMI's).
    """
    facts = _as_of(_catalog()[distro_id], release)
    own = overlay_stand_ins().get(distro_id, {})
    if own:
        facts = {**facts, "empty": {**facts["empty"], **own}}
    return model.load("amazon-linux", distro=distro_id, arch=arch, **facts)


@cache
def overlay_stand_ins() -> dict[str, dict[str, str]]:
    """Distribution → name → version of the empty packages that overlays add, in
    overlay/lab/packages.yaml. A mistake is an error (exit status 2) with file and line."""
    added: dict[str, dict[str, str]] = {}
    for path in overlay.own_files("lab/*"):
        if path.name != "packages.yaml":
            what = "an overlay has one file for the lab, overlay/lab/packages.yaml"
            raise overlay.overlay_mistake(path, what)
        document = yaml_files.load_yaml(path, overlay.shown_path(path))
        for name, packages in yaml_files.validated(_StandIns, document).root.items():
            if name not in _catalog():
                place = document.key_place((name,))
                what = "the lab passes on the repositories of all but Amazon Linux"
                hint = did_you_mean(name, _catalog())
                raise KilnError(f"{place}: {name!r}: {what}", hint=hint, place=place)
            added.setdefault(name, {}).update(packages)
    return added


def dist(distro_id: str) -> str:
    """The distribution's part of its packages' releases: amzn2023."""
    return str(_catalog()[distro_id]["dist"])


def releases(distro_id: str) -> list[str]:
    """The lab's states of a repository, oldest first; only al2023 has any."""
    return list(_catalog().get(distro_id, {}).get("releases", {}))


def parents_release(distro_id: str) -> str:
    """The release of the parent AMI."""
    return str(_catalog()[distro_id]["releasever"])


def _as_of(facts: dict[str, Any], release: str | None) -> dict[str, Any]:
    """The facts with the versions of a release."""
    if release is None or release == facts["releasever"]:
        return facts
    versions: dict[str, str] = facts["releases"][release]
    changed = {
        group: {name: versions.get(name, version) for name, version in facts[group].items()}
        for group in ("parent", "empty")
    }
    return {**facts, **changed, "releasever": release}


@cache
def digest() -> str:
    """SHA-256 (hex) of what packages are made of; those of overlays are in no base."""
    total = hashlib.sha256()
    for path in sorted(model.HERE.rglob("*")):
        if path.is_file() and not is_compiled(path):
            total.update(str(path.relative_to(model.HERE)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def install(distro_id: str, arch: str, root: Path) -> None:
    """Install in a base the packages of the parent AMI: release package, kernel, tools."""
    facts = _catalog()[distro_id]
    first = facts["kernels"][0]
    names = {*facts["parent"], *_INSTALLED_TOO}
    packages = [
        package
        for package in amazon_linux(distro_id, arch)
        if package.name in names
        or (package.name, package.version) == (first["name"], first["version"])
    ]
    with tempfile.TemporaryDirectory(dir=root / "var/tmp") as folder:
        built = rpm.build(packages, Path(folder))
        inside = ["/" + str(path.relative_to(root)) for path in built]
        run("chroot", str(root), "rpm", "--install", "--nosignature", *inside)


def kernel(distro_id: str, arch: str, name: str) -> list[Package]:
    """The oldest kernel of that name (kernel6.12) with its headers and its further modules."""
    first = next(entry for entry in _catalog()[distro_id]["kernels"] if entry["name"] == name)
    names = {name, *(f"{name}-{part}" for part in ("devel", "headers", "modules-extra"))}
    return [
        package
        for package in amazon_linux(distro_id, arch)
        if package.name in names and package.version == first["version"]
    ]


def ubuntu(distro_id: str, arch: str) -> list[Package]:
    """All packages in the lab's archive for an Ubuntu release; [] for other distributions."""
    facts = _ubuntu_catalog().get(distro_id)
    return model.load("ubuntu", arch=arch, **facts) if facts else []


def install_kernel(distro_id: str, arch: str, root: Path) -> None:
    """Install in a base the kernel of Ubuntu's parent AMI."""
    first = _ubuntu_catalog()[distro_id]["kernels"][0]
    version, meta = first["version"], first["meta_version"]
    packages = [p for p in ubuntu(distro_id, arch) if p.version in (version, meta)]
    with tempfile.TemporaryDirectory(dir=root / "var/tmp") as folder:
        built = deb.build(packages, Path(folder))
        inside = ["/" + str(path.relative_to(root)) for path in built]
        run("chroot", str(root), "dpkg", "--force-unsafe-io", "--install", *inside)


def about_missing(names: Sequence[str], distro: Distro, arch: str) -> str:
    """Tell if the lab or the distribution lacks packages of these names."""
    if distro.id not in _catalog():
        return (
            f"the lab passes on {distro.name}'s own repositories, so they do not have "
            f"{' and '.join(names)} either; of the vendors' packages it has stand-ins "
            "(docs/lab-stand-ins.md)"
        )
    count = len({package.name for package in amazon_linux(distro.id, arch)})
    return (
        f"the lab has no stand-in for {' and '.join(names)}: it has {count} packages of "
        f"{distro.name}, whose own repositories may well have more; a stand-in is a line in "
        "lab/vendors/packages/amazon-linux.yaml, or in overlay/lab/packages.yaml"
    )


def extras(distro_id: str) -> dict[str, list[str]]:
    """Topic of amazon-linux-extras → its packages; only al2 has topics."""
    topics: dict[str, list[str]] = _catalog()[distro_id]["extras"]
    return topics
