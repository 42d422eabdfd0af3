"""Asks for everything that the rows' bakes fetch: files, repositories, packages, dependencies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kiln import facts
from kiln.base.errors import operation_failed
from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage, nearest_published
from kiln.cloud.target import Target
from kiln.components.package_repositories import Repository
from kiln.preflight.answers import (
    FileAnswer,
    PackageAnswer,
    ParentAnswer,
    ResolveAnswer,
    RowAnswer,
    State,
)
from kiln.preflight.apt import AptRoot
from kiln.preflight.demand import Demand, File, Install, demand
from kiln.preflight.dnf import DnfRoot
from kiln.preflight.fetch import Fetcher, NoAnswerError, NotThereError
from kiln.preflight.indexes import SILENT, Index, ask_repository
from kiln.preflight.package_root import Offer, PackageRoot, UnusableError, most_like
from kiln.preflight.parents import ask_parents

# Requests that wait for the network, not for this machine.
_AT_ONCE = 16


def cache_folder() -> Path:
    """Where fetched files and package lists are kept: below XDG_CACHE_HOME."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ami-kiln" / "preflight"


@dataclass(frozen=True)
class _Fetches:
    """What the hosts answered for single files, repositories and, by row, parent AMIs."""

    parents: Mapping[str, ParentAnswer]
    files: Mapping[str, FileAnswer]
    indexes: Mapping[Repository, Index]


def ask(
    recipes: Sequence[Recipe],
    folder: Path,
    *,
    whole_files: bool,
    say: Callable[[str], None],
    target: Target | None = None,
) -> list[RowAnswer]:
    """Ask the vendors' hosts for everything that bakes of the recipes fetch. Nothing is launched.

    `folder` is an empty one. `whole_files` fetches each file whose hash is known, and compares it.
    `target` is AWS where there are credentials: it is asked for the parent AMIs. Raises KilnError
    for a recipe that is incomplete and for bad KILN_MIRRORS.
    """
    demands = [demand(recipe) for recipe in recipes]
    cache = cache_folder()
    try:
        fetcher = Fetcher(cache / "files")
    except OSError as error:
        raise operation_failed(
            f"{cache} cannot be used: {error.strerror}", hint="set XDG_CACHE_HOME to another folder"
        ) from None
    parents = ask_parents(recipes, target)
    fetches = _fetch(demands, parents, fetcher, folder, whole_files=whole_files, say=say)
    machines = _machines(demands, fetches)
    say(f"asking apt and dnf for the packages of {len(demands)} rows")

    def of_machine(machine: _Machine) -> list[RowAnswer]:
        return [
            row
            for number, (usable, of_root) in enumerate(machines[machine].items())
            for row in _ask_root(
                machine, usable, of_root, fetches, folder / f"{machine}-{number}", cache
            )
        ]

    # Roots of one machine share its package lists: they are made one after the other.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        rows = {row.recipe.name: row for same in pool.map(of_machine, machines) for row in same}
    return [rows[recipe.name] for recipe in recipes]


def _fetch(
    demands: Sequence[Demand],
    parents: Mapping[str, ParentAnswer],
    fetcher: Fetcher,
    folder: Path,
    *,
    whole_files: bool,
    say: Callable[[str], None],
) -> _Fetches:
    """Ask for each file and repository once."""
    files = {file.url: file for needs in demands for file in needs.files}
    repositories = list(dict.fromkeys(entry for needs in demands for entry in needs.repositories))
    say(f"asking for {len(files)} files and {len(repositories)} repositories")
    ask_file = partial(_file, fetcher=fetcher, whole=whole_files)
    ask_for = partial(ask_repository, fetcher=fetcher, folder=folder / "keys")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answered = pool.map(ask_file, files.values())
        indexes = pool.map(ask_for, repositories)
        return _Fetches(
            parents,
            dict(zip(files, answered, strict=True)),
            dict(zip(repositories, indexes, strict=True)),
        )


def _file(file: File, *, fetcher: Fetcher, whole: bool) -> FileAnswer:
    """Does the host have the file, how large is it, and is it the known one?"""
    try:
        if not (whole and file.sha256):
            return FileAnswer(file, State.PUBLISHED, fetcher.size(file.url))
        fetched = fetcher.get(file.url)
    except NotThereError as error:
        return FileAnswer(file, State.MISSING, detail=str(error))
    except NoAnswerError as error:
        return FileAnswer(file, State.SILENT, detail=error.reason, host=error.host)
    if fetched.sha256 != file.sha256:
        return FileAnswer(
            file,
            State.MISSING,
            fetched.size,
            f"{file.url} has sha256 {fetched.sha256}, expected {file.sha256}",
        )
    return FileAnswer(file, State.PUBLISHED, fetched.size, compared=True)


@dataclass(frozen=True)
class _Machine:
    """What package lists are for: a distribution and a processor."""

    distro: str
    arch: str

    def __str__(self) -> str:
        return f"{self.distro}-{self.arch}"


def _machines(
    demands: Iterable[Demand], fetches: _Fetches
) -> dict[_Machine, dict[tuple[Index, ...], list[Demand]]]:
    """The rows of each machine by their repositories, as far as those can be used."""
    machines: dict[_Machine, dict[tuple[Index, ...], list[Demand]]] = {}
    for needs in demands:
        indexes = [fetches.indexes[repository] for repository in needs.repositories]
        usable = tuple(index for index in indexes if index.usable)
        machine = _Machine(needs.recipe.distro.id, needs.recipe.arch)
        machines.setdefault(machine, {}).setdefault(usable, []).append(needs)
    return machines


def _ask_root(
    machine: _Machine,
    usable: tuple[Index, ...],
    demands: Sequence[Demand],
    fetches: _Fetches,
    folder: Path,
    cache: Path,
) -> list[RowAnswer]:
    names = sorted({package.name for needs in demands for package in needs.packages})
    root: PackageRoot | None = None
    problem, offers = "", dict[str, list[Offer]]()
    if usable:
        try:
            root = _package_root(machine, usable, folder, cache)
            offers = root.offers(names)
        except UnusableError as error:
            problem = str(error)
    return [_row(needs, fetches, root, offers, problem) for needs in demands]


def _package_root(
    machine: _Machine, usable: tuple[Index, ...], folder: Path, cache: Path
) -> PackageRoot:
    names = facts.table("downloads")["processors"][machine.arch]
    if usable[0].repository.kind == "apt":
        return AptRoot(folder, cache / "apt" / str(machine), names["deb"], usable)
    return DnfRoot(folder, cache / "dnf" / str(machine), machine.distro, names["uname"], usable)


def _row(
    needs: Demand,
    fetches: _Fetches,
    root: PackageRoot | None,
    offers: dict[str, list[Offer]],
    problem: str,
) -> RowAnswer:
    indexes = [fetches.indexes[repository] for repository in needs.repositories]
    silent = tuple(index.host for index in indexes if index.state == SILENT)
    packages = {
        package: _package(package, root, offers, silent, problem) for package in needs.packages
    }
    return RowAnswer(
        recipe=needs.recipe,
        parent=fetches.parents[needs.recipe.name],
        files=tuple(fetches.files[file.url] for file in needs.files),
        repositories=tuple(indexes),
        packages=tuple(packages.values()),
        resolved=tuple(
            _resolve(install, packages, root, offers, problem) for install in needs.installs
        ),
    )


def _package(
    package: WantedPackage,
    root: PackageRoot | None,
    offers: dict[str, list[Offer]],
    silent: Sequence[str],
    problem: str,
) -> PackageAnswer:
    have = offers.get(package.name, [])
    fitting = next((offer for offer in have if package.is_met_by(offer.version)), None)
    if fitting:
        return PackageAnswer(package, State.PUBLISHED, fitting.version, fitting.repository)
    if silent:
        return PackageAnswer(package, State.SILENT, hosts=tuple(dict.fromkeys(silent)))
    if root is None or problem:
        return PackageAnswer(package, State.MISSING, detail=problem)
    nearest = nearest_published(package.version, (offer.version for offer in have))
    if nearest:
        built = f" built for {package.build}" if package.build else ""
        return PackageAnswer(
            package,
            State.MISSING,
            nearest=nearest,
            detail=f"not at {package.version}{built}; the nearest published is {nearest}",
        )
    like = most_like(package.name, root.names)
    hint = f"; published is {like}" if like else ""
    return PackageAnswer(package, State.MISSING, detail=f"no package of this name{hint}")


def _resolve(
    install: Install,
    packages: Mapping[WantedPackage, PackageAnswer],
    root: PackageRoot | None,
    offers: dict[str, list[Offer]],
    problem: str,
) -> ResolveAnswer:
    """Do the packages that were found fit together, with all that they depend on?"""
    there = [p for p in install.packages if packages[p].state is State.PUBLISHED]
    if root is None or problem or not there:
        state = State.MISSING if problem else State.SILENT
        return ResolveAnswer(state, install, detail=problem)
    resolved = root.resolve(Install(tuple(there), install.stream), offers)
    if resolved.problem:
        waits = any(packages[p].state is State.SILENT for p in install.packages)
        # A dependency may be in a repository that does not answer.
        state = State.SILENT if waits else State.MISSING
        return ResolveAnswer(state, install, detail=resolved.problem)
    whole = len(there) == len(install.packages)
    state = State.PUBLISHED if whole else State.SILENT
    return ResolveAnswer(state, install, resolved.packages)
