"""What a bake of a recipe asks the vendors' hosts for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components import Step
from kiln.facts.lock_file import locked_hashes
from kiln.preflight import repositories
from kiln.preflight.repositories import Repository

# Variables of a script that list packages in the format of kiln_install.
_LISTS = ("_PACKAGES", "_PACKAGE")
# Installed before the others and removed again: they would conflict with them.
_APART = ("NVIDIA_OTHER_PACKAGES", "NVIDIA_OTHER_STREAM")


@dataclass(frozen=True)
class File:
    """A file that a component's script fetches; `sha256` is empty if nobody knows it yet."""

    component: str
    url: str
    sha256: str


@dataclass(frozen=True)
class Package:
    """A package that a script installs: kiln_install's name[=version[@build]].

    `version` is empty for whatever the repositories have, `build` names the CUDA in the revision.
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


@dataclass(frozen=True)
class Install:
    """Packages that must fit together on one machine, and the DNF module stream enabled first."""

    packages: tuple[Package, ...]
    stream: str = ""


@dataclass(frozen=True)
class Demand:
    """Everything that a bake of one row fetches."""

    recipe: Recipe
    files: tuple[File, ...]
    repositories: tuple[Repository, ...]
    installs: tuple[Install, ...]

    @property
    def packages(self) -> tuple[Package, ...]:
        """The packages of all installs, each once."""
        return tuple(dict.fromkeys(p for install in self.installs for p in install.packages))


def demand(recipe: Recipe) -> Demand:
    """What a bake of the recipe fetches.

    Raises KilnError (exit status 2) as the components do for an incomplete recipe.
    """
    steps = repositories.steps(recipe)
    return Demand(
        recipe=recipe,
        files=tuple(file for step in steps for file in _files(step)),
        repositories=repositories.of_row(recipe, steps),
        installs=tuple(_installs(steps, rpm=recipe.distro.family == "al")),
    )


def _files(step: Step) -> list[File]:
    hashes = locked_hashes()
    return [
        File(step.name, download.url, hashes.get(download.url) or _published(download.url))
        for download in step.downloads
    ]


def _published(url: str) -> str:
    known = facts.known_sha256(url)
    return known.sha256 if known else ""


def _installs(steps: tuple[Step, ...], *, rpm: bool) -> list[Install]:
    together: list[Package] = []
    apart: list[Package] = []
    for step in steps:
        for variable, value in step.env.items():
            if variable.endswith(_LISTS) and not _default_of_pinned(variable, step):
                named = [_package(step.name, spec) for spec in value.split()]
                (apart if variable in _APART else together).extend(named)
    streams = {name: value for step in steps for name, value in step.env.items()}
    main = Install(tuple(dict.fromkeys(together)), _module(streams, "NVIDIA_DRIVER_STREAM", rpm))
    if not apart:
        return [main]
    other = Install(tuple(dict.fromkeys(apart)), _module(streams, "NVIDIA_OTHER_STREAM", rpm))
    return [main, other]


def _default_of_pinned(variable: str, step: Step) -> bool:
    """A pinned kernel takes the place of the default one."""
    return variable == "KERNEL_DEFAULT_PACKAGE" and bool(step.env.get("KERNEL_PACKAGE"))


def _module(variables: dict[str, str], name: str, rpm: bool) -> str:
    from_repository = variables.get("NVIDIA_DRIVER_SOURCE") == "repo"
    stream = variables.get(name, "")
    return f"nvidia-driver:{stream}" if rpm and from_repository and stream else ""


def _package(component: str, spec: str) -> Package:
    name, _, rest = spec.partition("=")
    version, _, build = rest.partition("@")
    return Package(component, name, version, build)
