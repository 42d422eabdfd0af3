"""Versions compared as numbers: 535.98 < 535.104.05, 5.14 > 5.4."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

Entry = TypeVar("Entry", bound=Mapping[str, Any])


# A check of the matrix compares a few hundred versions about a hundred thousand times.
@lru_cache(maxsize=8192)
def key(version: str) -> tuple[int, ...]:
    """The numbers in a version, for comparison; trailing zeros do not count: 12.2.0 is 12.2."""
    numbers = [int(number) for number in re.findall("[0-9]+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def at_least(version: str, floor: str) -> bool:
    """Return True if `version` is equal to `floor` or newer."""
    return key(version) >= key(floor)


def below(version: str, limit: str) -> bool:
    """Return True if `version` is older than `limit`."""
    return key(version) < key(limit)


def same(version: str, other: str) -> bool:
    """Return True if both are the same version, however written: 510.47.3 and 510.47.03."""
    return key(version) == key(other)


def newest(versions: Iterable[str]) -> str | None:
    """The newest version, or None if there are none."""
    return max(versions, key=key, default=None)


def last_reached(entries: Iterable[Entry], since: str, version: str) -> Entry | None:
    """Return the entry that holds for `version`, of entries that hold from their `since` on; None
    if it is older than all. Of two from the same version the first one counts, which is an
    overlay's."""
    reached = [entry for entry in entries if at_least(version, entry[since])]
    return max(reached, key=lambda entry: key(entry[since]), default=None)


def major(version: str) -> str:
    """The part before the first dot: the branch of a driver, the major of CUDA."""
    return version.split(".", maxsplit=1)[0]


def series(version: str) -> str:
    """Major and minor: 11.6.2 → 11.6."""
    return ".".join(version.split(".")[:2])


@dataclass(frozen=True)
class WantedPackage:
    """A package that a component's script installs.

    `version` is empty for whatever the repositories have; `build` names the CUDA in the revision.
    """

    component: str
    name: str
    version: str
    build: str

    def __str__(self) -> str:
        exact = f"={self.version}" if self.version else ""
        return f"{self.name}{exact}" + (f"@{self.build}" if self.build else "")

    def is_met_by(self, offered: str) -> bool:
        """Return True if an offered version (with epoch and revision) is the one that is asked for.

        The rule of kiln_matches in provisioners/lib/packages.sh.
        """
        version = offered.partition(":")[2] or offered
        if not self.version:
            return True
        if not re.match(re.escape(self.version) + r"($|[-+~])", version):
            return False
        return not self.build or bool(
            re.search(r"[+.]" + re.escape(self.build) + r"([.~-]|$)", version)
        )


def parse_package(component: str, spec: str) -> WantedPackage:
    """The package of a word in the format of kiln_install."""
    name, _, rest = spec.partition("=")
    version, _, build = rest.partition("@")
    return WantedPackage(component, name, version, build)


def nearest_published(wanted: str, published: Iterable[str]) -> str:
    """The published version (with epoch and revision) nearest to the wanted one, which differs last
    and least; of two equal ones the newer. Empty if none is published."""

    def distance(version: str) -> list[int]:
        have = key(version.partition(":")[2] or version)
        return [abs(left - right) for left, right in zip(have, key(wanted), strict=False)]

    return min(sorted(published, key=key, reverse=True), key=distance, default="")
