"""A package as kiln_install takes it: name[=version[@build]]."""

from __future__ import annotations

import re
from dataclasses import dataclass


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
