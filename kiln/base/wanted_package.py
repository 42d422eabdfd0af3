"""A package as kiln_install takes it: name[=version[@build]]."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kiln.base import versions


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
        """Is an offered version (with epoch and revision) the one that is asked for?

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
    """The published version (with epoch and revision) nearest to the wanted one; empty if none is.

    The nearest has the most leading numbers in common, then the smallest difference in the first
    number that differs; of two equal ones, the newer.
    """

    def distance(version: str) -> tuple[int, int, tuple[int, ...]]:
        have = versions.key(version.partition(":")[2] or version)
        want = versions.key(wanted)
        common = 0
        for left, right in zip(have, want, strict=False):
            if left != right:
                break
            common += 1
        left = have[common] if common < len(have) else 0
        right = want[common] if common < len(want) else 0
        return (-common, abs(left - right), tuple(-number for number in have))

    return min(published, key=distance, default="")
