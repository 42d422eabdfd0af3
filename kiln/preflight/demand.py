"""What a bake of a recipe asks the vendors' hosts for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage
from kiln.components import Step, package_repositories
from kiln.components.package_repositories import Repository
from kiln.facts.packages import locked_hashes

# Installed before the others and removed again: they would conflict with them.
_APART = ("NVIDIA_OTHER_PACKAGES",)


@dataclass(frozen=True)
class File:
    """A file that a component's script fetches; `sha256` is empty if nobody knows it yet."""

    component: str
    url: str
    sha256: str


@dataclass(frozen=True)
class Install:
    """Packages that must fit together on one machine, and the DNF module stream enabled first."""

    packages: tuple[WantedPackage, ...]
    stream: str = ""


@dataclass(frozen=True)
class Demand:
    """Everything that a bake of one row fetches."""

    recipe: Recipe
    files: tuple[File, ...]
    repositories: tuple[Repository, ...]
    installs: tuple[Install, ...]

    @property
    def packages(self) -> tuple[WantedPackage, ...]:
        """The packages of all installs, each once."""
        return tuple(dict.fromkeys(p for install in self.installs for p in install.packages))


def demand(recipe: Recipe) -> Demand:
    """What a bake of the recipe fetches.

    Raises KilnError (exit status 2) as the components do for an incomplete recipe.
    """
    steps = package_repositories.steps(recipe)
    return Demand(
        recipe=recipe,
        files=tuple(file for step in steps for file in _files(step)),
        repositories=package_repositories.row_repositories(recipe, steps),
        installs=tuple(_installs(steps, rpm=recipe.distro.family == "al")),
    )


def _files(step: Step) -> Iterator[File]:
    hashes = locked_hashes()
    for download in step.downloads:
        known = facts.known_sha256(download.url)
        sha256 = hashes.get(download.url) or (known.sha256 if known else "")
        yield File(step.name, download.url, sha256)


def _installs(steps: tuple[Step, ...], *, rpm: bool) -> list[Install]:
    together: list[WantedPackage] = []
    apart: list[WantedPackage] = []
    for step in steps:
        for variable, named in step.packages.items():
            (apart if variable in _APART else together).extend(named)
    streams = {name: value for step in steps for name, value in step.env.items()}
    main = Install(tuple(dict.fromkeys(together)), _module(streams, "NVIDIA_DRIVER_STREAM", rpm))
    if not apart:
        return [main]
    other = Install(tuple(dict.fromkeys(apart)), _module(streams, "NVIDIA_OTHER_STREAM", rpm))
    return [main, other]


def _module(variables: dict[str, str], name: str, rpm: bool) -> str:
    from_repository = variables.get("NVIDIA_DRIVER_SOURCE") == "repo"
    stream = variables.get(name, "")
    return f"nvidia-driver:{stream}" if rpm and from_repository and stream else ""
