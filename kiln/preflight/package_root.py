"""What apt and dnf have in common: a throwaway root that knows some repositories."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kiln.preflight.demand import Install

# Seconds that apt and dnf wait for a host that went silent after it had answered.
TIMEOUT = 20


class UnusableError(Exception):
    """The package tool cannot read the repositories; its own words."""


@dataclass(frozen=True)
class Offer:
    """A package that a repository has: version with epoch and revision, and the repository."""

    version: str
    repository: str


@dataclass(frozen=True)
class Resolved:
    """How the solver ended: the packages that it would install, as name=version, or its words."""

    packages: tuple[str, ...] = ()
    problem: str = ""


class PackageRoot(Protocol):
    """A throwaway root of one distribution and processor."""

    def offers(self, names: Iterable[str]) -> dict[str, list[Offer]]:
        """The versions of each package, newest first; no entry for a name that nobody has."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all packages."""

    def resolve(self, install: Install, offers: dict[str, list[Offer]]) -> Resolved:
        """Let the solver install these packages into an empty machine."""


def most_like(name: str, names: Iterable[str]) -> str:
    """The known name with the same first word that is most like this one; empty if none is."""
    start = name.split("-", maxsplit=1)[0]
    alike = [entry for entry in names if entry.startswith(start)]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=0.75)
    return close[0] if close else ""
