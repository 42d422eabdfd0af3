"""What repositories had when `./invoke preflight --record` asked them.

A file of `kiln/facts/knowledge/indexes/` is one repository of one distribution and processor. It
lists the packages that a component may ask for with their versions, and under `absent` the names
that were asked for and not there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import overlay
from kiln.base.errors import KilnError
from kiln.base.findings import Place
from kiln.base.paths import KNOWLEDGE
from kiln.base.wanted_package import WantedPackage, nearest_published
from kiln.facts.tables import read_table


class Published(Enum):
    """What the recorded indexes say of a package."""

    YES = "published"
    NO = "not published"
    UNKNOWN = "not recorded"


@dataclass(frozen=True)
class RecordedPackage:
    """A package at one version, with epoch and revision; what it requires and provides is in the
    package tool's own words."""

    version: str
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedIndex:
    """One repository as it was: package name → what it has of it, newest version first."""

    repository: str
    url: str
    distro: str
    arch: str
    recorded: str
    packages: Mapping[str, tuple[RecordedPackage, ...]]
    absent: frozenset[str]

    def versions(self, name: str) -> list[str]:
        """The versions of a package, with epoch and revision, newest first."""
        return [entry.version for entry in self.packages.get(name, ())]


@dataclass(frozen=True)
class Judged:
    """What the indexes say of a package: the version that a bake would take, or the nearest."""

    state: Published
    version: str = ""
    nearest: str = ""
    recorded: str = ""


def indexes_folder() -> Path:
    """Where recorded indexes are; `KILN_INDEXES` names another folder."""
    return Path(os.environ.get("KILN_INDEXES", KNOWLEDGE / "indexes")).absolute()


def index_file(distro: str, arch: str, repository: str) -> Path:
    """The file of a repository for a distribution and processor."""
    return indexes_folder() / f"{distro}-{arch}-{repository}.yaml"


def recorded_index(distro: str, arch: str, repository: str) -> RecordedIndex | None:
    """What was recorded of a repository; None if nothing was. Raises KilnError (exit status 2) for
    a damaged file."""
    path = index_file(distro, arch, repository)
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@cache
def _read(path: Path, _changed: int) -> RecordedIndex:
    """Raises KilnError (exit status 2) for a file that `preflight --record` did not write so."""
    try:
        return _as_index(read_table(path))
    except (AttributeError, LookupError, TypeError, ValueError):
        shown = overlay.shown_path(path)
        raise KilnError(
            f"{shown}: it is not an index that `./invoke preflight --record` wrote",
            hint="restore it from its repository, or remove it and record it anew",
            place=Place(shown),
        ) from None


def _as_index(data: dict[str, Any]) -> RecordedIndex:
    packages = {
        name: tuple(
            RecordedPackage(
                entry["version"], tuple(entry["requires"]), tuple(entry.get("provides", ()))
            )
            for entry in entries
        )
        for name, entries in data["packages"].items()
    }
    return RecordedIndex(
        repository=data["repository"],
        url=data["url"],
        distro=data["distro"],
        arch=data["arch"],
        recorded=data["recorded"],
        packages=packages,
        absent=frozenset(data["absent"]),
    )


def judge_package(package: WantedPackage, records: Sequence[RecordedIndex | None]) -> Judged:
    """Is a package published in one of a row's repositories, as far as they are recorded?

    `records` has the index of each of them, None for one that was not recorded.
    """
    there = [index for index in records if index is not None]
    for index in there:
        for version in index.versions(package.name):
            if package.is_met_by(version):
                return Judged(Published.YES, version, recorded=index.recorded)
    if not records or len(there) < len(records):
        return Judged(Published.UNKNOWN)
    offered = [version for index in there for version in index.versions(package.name)]
    if offered or all(package.name in index.absent for index in there):
        nearest = nearest_published(package.version, offered)
        return Judged(Published.NO, nearest=nearest, recorded=min(i.recorded for i in there))
    return Judged(Published.UNKNOWN)
