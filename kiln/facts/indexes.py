"""What repositories had when `./invoke preflight --record` asked them: `knowledge/indexes/`.

A file is one repository of one distribution and processor. It lists the packages that a component
may ask for with their versions, and under `absent` the names that were asked for and not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base.paths import KNOWLEDGE
from kiln.base.wanted_package import WantedPackage, nearest_published
from kiln.facts.tables import read_table


class Published(Enum):
    """What the recorded indexes say of a package."""

    YES = "published"
    NO = "not published"
    UNKNOWN = "not recorded"


@dataclass(frozen=True)
class RecordedIndex:
    """One repository as it was: package name → its versions with revision, newest first."""

    repository: str
    url: str
    recorded: str
    packages: Mapping[str, tuple[str, ...]]
    absent: frozenset[str]


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
    """What was recorded of a repository; None if nothing was."""
    path = index_file(distro, arch, repository)
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@cache
def _read(path: Path, _changed: int) -> RecordedIndex:
    data: dict[str, Any] = read_table(path)
    packages = {
        name: tuple(entry["version"] for entry in entries)
        for name, entries in data["packages"].items()
    }
    absent = frozenset(data["absent"])
    return RecordedIndex(data["repository"], data["url"], data["recorded"], packages, absent)


def judge_package(
    package: WantedPackage, distro: str, arch: str, repositories: Iterable[str]
) -> Judged:
    """Is a package published in one of a row's repositories, as far as they are recorded?"""
    known = [recorded_index(distro, arch, repository) for repository in repositories]
    there = [index for index in known if index is not None]
    for index in there:
        for version in index.packages.get(package.name, ()):
            if package.is_met_by(version):
                return Judged(Published.YES, version, recorded=index.recorded)
    if not known or len(there) < len(known):
        return Judged(Published.UNKNOWN)
    offered = [version for index in there for version in index.packages.get(package.name, ())]
    if offered or all(package.name in index.absent for index in there):
        nearest = nearest_published(package.version, offered)
        return Judged(Published.NO, nearest=nearest, recorded=min(i.recorded for i in there))
    return Judged(Published.UNKNOWN)
