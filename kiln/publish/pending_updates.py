"""Security updates that an image lacks: its packages, as its record lists them, against what the
distribution's security repositories have today.

A row that is pinned to a package snapshot, and a distribution that is updated by its parent AMI
(Amazon Linux 2023), lack nothing that a bake could bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.package_versions import is_newer, order
from kiln.base.paths import build_dir
from kiln.base.recipe import Recipe
from kiln.base.tags import RUN_ID
from kiln.cloud.target import Target
from kiln.components.package_repositories import updated_by_parent
from kiln.image import version_info
from kiln.image.version_info import Package
from kiln.pipeline import kept_records, record
from kiln.preflight.security import SecurityUpdates, ask_security, series_of
from kiln.publish.own_images import OwnImage

# Named in a reason; the rest is counted.
_NAMED = 3
# Packages of the kernel: a bake takes the newest, and holds it then.
_KERNEL = ("kernel", "linux-")


@dataclass(frozen=True)
class Update:
    """A package of an image, and the newer version that fixes something."""

    name: str
    installed: str
    available: str

    def __str__(self) -> str:
        return f"{self.name} {self.installed} → {self.available}"


@dataclass(frozen=True)
class Lacking:
    """The security updates that an image lacks; `unknown` says why that is not known, or not of all
    repositories."""

    updates: tuple[Update, ...] = ()
    unknown: str = ""

    def __str__(self) -> str:
        names = [str(update) for update in self.updates[:_NAMED]]
        more = len(self.updates) - _NAMED
        if more > 0:
            names.append(f"and {more} more")
        number = len(self.updates)
        return f"{number} pending security update{'s' if number > 1 else ''}: {', '.join(names)}"


Bring = Callable[[Mapping[str, str]], None]


def lacking_updates(
    images: Sequence[tuple[Recipe, OwnImage]], target: Target, bring: Bring
) -> dict[str, Lacking]:
    """What each row's image lacks, by the row's name.

    `bring` gets the rows whose record is not here (row → run id) and may fetch it. A repository
    that does not answer, and an image without a record, make it `unknown`; nothing is guessed.
    Raises KilnError (exit status 2) for bad KILN_MIRRORS.
    """
    pairs = [
        (recipe, image)
        for recipe, image in images
        if recipe.package_snapshot is None and not updated_by_parent(recipe.distro.id)
    ]
    away = {
        recipe.name: image.tags[RUN_ID]
        for recipe, image in pairs
        if not _record_of(recipe, image).exists()
    }
    if away:
        bring(away)
    archives = {recipe.name: target.archive_of(recipe) for recipe, _ in pairs}
    published = ask_security(archives.values())
    return {
        recipe.name: _lacking(recipe, image, published.get(archives[recipe.name]))
        for recipe, image in pairs
    }


def _lacking(recipe: Recipe, image: OwnImage, published: SecurityUpdates | None) -> Lacking:
    if published is None:
        name = recipe.distro.name
        return Lacking(unknown=f"no security repository of {name} is known (archives.yaml)")
    try:
        info = _info_of(recipe, image)
    except KilnError as error:
        return Lacking(unknown=error.message)
    updates = tuple(_pending(info, recipe, published))
    return Lacking(updates, "; ".join(published.silent))


def _record_of(recipe: Recipe, image: OwnImage) -> Path:
    return build_dir() / recipe.name / image.tags[RUN_ID] / "record.json"


def _info_of(recipe: Recipe, image: OwnImage) -> dict[str, Any]:
    """The version-info of an image, by the record of its build or of its verification here.

    Raises KilnError if there is none.
    """
    path = _record_of(recipe, image)
    if path.exists():
        return version_info.of(record.document(path), str(path))
    for verified in kept_records.all_of(recipe.name):
        if verified.ami_id == image.ami_id and verified.versions:
            return version_info.of({"versions": verified.versions})
    raise KilnError(
        f"this machine has no record of run {image.tags[RUN_ID]}, which made {image.ami_id}: "
        "--records-bucket names a bucket that has"
    )


def _pending(info: dict[str, Any], recipe: Recipe, published: SecurityUpdates) -> Iterator[Update]:
    """The updates that a bake of today would bring and the image's own bake could not."""
    held = set(info.get("held") or ())
    left = {entry["name"]: entry["version"] for entry in info.get("upgradable") or ()}
    for package in _newest_installed(info, recipe, published):
        newest = _newest_of(package, published)
        if newest is None or not is_newer(published.manager, newest, package.version):
            continue
        if _stays(package, held, recipe):
            continue
        # The image's own bake saw it and left it, so the next one will too.
        if package.name in left and not is_newer(published.manager, newest, left[package.name]):
            continue
        yield Update(package.name, package.version, newest)


def _newest_installed(
    info: dict[str, Any], recipe: Recipe, published: SecurityUpdates
) -> list[Package]:
    """The packages of the recipe's processor; of several versions of a name the newest."""
    names = facts.table("downloads")["processors"][recipe.arch]
    arches = {names["deb"], "all", names["uname"], "noarch"}
    newest: dict[str, Package] = {}
    for package in version_info.installed_packages(info):
        if package.manager != published.manager or package.arch not in arches:
            continue
        other = newest.get(package.name)
        if other is None or order(published.manager, package.version, other.version) > 0:
            newest[package.name] = package
    return [newest[name] for name in sorted(newest)]


def _newest_of(package: Package, published: SecurityUpdates) -> str | None:
    """The newest version that is published of the package, for a kernel of the same series."""
    series = series_of(package.name, package.version)
    newest: str | None = None
    for version in published.versions.get(package.name, ()):
        if series_of(package.name, version) == series and (
            newest is None or is_newer(published.manager, version, newest)
        ):
            newest = version
    return newest


def _stays(package: Package, held: set[str], recipe: Recipe) -> bool:
    """Does a bake of the row not move the package: because the row names its version?"""
    if package.name.startswith(_KERNEL) and not recipe.kernel:
        return False
    # Amazon Linux's locks name the version too, without its epoch.
    return not held.isdisjoint({package.name, f"{package.name}-{package.version.split(':')[-1]}"})
