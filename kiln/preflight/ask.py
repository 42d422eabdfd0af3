"""Asks for everything that the rows' bakes fetch: files, repositories, packages, dependencies."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kiln import facts
from kiln.base.errors import operation_failed
from kiln.base.recipe import Recipe
from kiln.base.wanted_package import WantedPackage
from kiln.preflight.answers import (
    FileAnswer,
    PackageAnswer,
    ResolveAnswer,
    RowAnswer,
    State,
)
from kiln.preflight.apt import AptWorld
from kiln.preflight.demand import Demand, File, Install, demand
from kiln.preflight.dnf import DnfWorld
from kiln.preflight.fetch import Fetcher, NoAnswerError, NotThereError
from kiln.preflight.indexes import SILENT, Index, ask_repository
from kiln.preflight.repositories import Repository
from kiln.preflight.world import Offer, UnusableError, World, nearest_offered

# Requests that wait for the network, not for this machine.
_AT_ONCE = 16


def cache_folder() -> Path:
    """Where fetched files and package lists are kept: below XDG_CACHE_HOME."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ami-kiln" / "preflight"


@dataclass(frozen=True)
class Asked:
    """Answers per row, and the worlds that gave them, for `record`."""

    rows: tuple[RowAnswer, ...]
    worlds: tuple[AskedWorld, ...]


@dataclass(frozen=True)
class AskedWorld:
    """The repositories of some rows that answered, and what was asked of them.

    `world` is None if none of them answered or the package tool cannot read them: `problem`.
    """

    distro: str
    arch: str
    indexes: tuple[Index, ...]
    world: World | None
    problem: str
    offers: dict[str, list[Offer]]
    rows: tuple[RowAnswer, ...]


@dataclass(frozen=True)
class _Fetches:
    """What the hosts answered for single files and repositories."""

    files: Mapping[str, FileAnswer]
    indexes: Mapping[Repository, Index]


def ask(recipes: Sequence[Recipe], *, whole_files: bool, say: Callable[[str], None]) -> Asked:
    """Ask the vendors' hosts for everything that bakes of the recipes fetch.

    `whole_files` fetches each file whose hash is known, and compares it. Nothing is launched.
    Raises KilnError for a recipe that is incomplete and for bad KILN_MIRRORS.
    """
    demands = [demand(recipe) for recipe in recipes]
    cache = cache_folder()
    try:
        fetcher = Fetcher(cache / "files")
    except OSError as error:
        raise operation_failed(
            f"{cache} cannot be used: {error.strerror}", hint="set XDG_CACHE_HOME to another folder"
        ) from None
    files = {file.url: file for one in demands for file in one.files}
    repositories = {repository for one in demands for repository in one.repositories}
    say(f"asking for {len(files)} files and {len(repositories)} repositories")
    with tempfile.TemporaryDirectory(prefix="kiln-preflight-") as folder:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            ask_file = partial(_file, fetcher=fetcher, whole=whole_files)
            answered = pool.map(ask_file, files.values())
            known = pool.map(
                lambda entry: ask_repository(entry, fetcher, Path(folder, "keys")), repositories
            )
            fetches = _Fetches(
                dict(zip(files, answered, strict=True)),
                dict(zip(repositories, known, strict=True)),
            )
        worlds = _worlds(demands, fetches)
        say(f"asking {sum(map(len, worlds.values()))} rows' packages of apt and dnf")
        # Rows of one distribution share its package lists: one after the other.
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            families: dict[tuple[str, str], list[tuple[Index, ...]]] = {}
            for distro, arch, usable in worlds:
                families.setdefault((distro, arch), []).append(usable)

            def family(item: tuple[tuple[str, str], list[tuple[Index, ...]]]) -> list[AskedWorld]:
                (distro, arch), sets = item
                return [
                    _ask_world(
                        distro,
                        arch,
                        usable,
                        worlds[distro, arch, usable],
                        fetches,
                        Path(folder, hashlib.sha256(repr(usable).encode()).hexdigest()[:16]),
                        cache,
                    )
                    for usable in sets
                ]

            asked = [world for result in pool.map(family, families.items()) for world in result]
    rows = {row.recipe.name: row for world in asked for row in world.rows}
    return Asked(tuple(rows[recipe.name] for recipe in recipes), tuple(asked))


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


_Key = tuple[str, str, tuple[Index, ...]]


def _worlds(demands: Iterable[Demand], fetches: _Fetches) -> dict[_Key, list[Demand]]:
    """Distribution, processor and usable repositories → the rows that have them."""
    worlds: dict[_Key, list[Demand]] = {}
    for one in demands:
        known = [fetches.indexes[repository] for repository in one.repositories]
        usable = tuple(index for index in known if index.usable)
        worlds.setdefault((one.recipe.distro.id, one.recipe.arch, usable), []).append(one)
    return worlds


def _ask_world(
    distro: str,
    arch: str,
    usable: tuple[Index, ...],
    demands: Sequence[Demand],
    fetches: _Fetches,
    folder: Path,
    cache: Path,
) -> AskedWorld:
    names = sorted({package.name for one in demands for package in one.packages})
    world: World | None = None
    problem, offers = "", dict[str, list[Offer]]()
    if usable:
        try:
            world = _world(distro, arch, usable, folder, cache)
            offers = world.offers(names)
        except UnusableError as error:
            problem = str(error)
    rows = tuple(_row(one, fetches, world, offers, problem) for one in demands)
    return AskedWorld(distro, arch, usable, world, problem, offers, rows)


def _world(distro: str, arch: str, usable: tuple[Index, ...], folder: Path, cache: Path) -> World:
    names = facts.table("downloads")["processors"][arch]
    if usable[0].repository.kind == "apt":
        return AptWorld(folder, cache / "apt" / f"{distro}-{arch}", names["deb"], usable)
    kept = cache / "dnf" / f"{distro}-{arch}"
    return DnfWorld(folder, kept, distro, names["uname"], usable)


def _row(
    asked: Demand,
    fetches: _Fetches,
    world: World | None,
    offers: dict[str, list[Offer]],
    problem: str,
) -> RowAnswer:
    known = [fetches.indexes[repository] for repository in asked.repositories]
    silent = tuple(index.host for index in known if index.state == SILENT)
    packages = {
        package: _package(package, world, offers, silent, problem) for package in asked.packages
    }
    return RowAnswer(
        recipe=asked.recipe,
        files=tuple(fetches.files[file.url] for file in asked.files),
        repositories=tuple(known),
        packages=tuple(packages.values()),
        resolved=tuple(
            _resolve(install, packages, world, offers, problem) for install in asked.installs
        ),
    )


def _package(
    package: WantedPackage,
    world: World | None,
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
    if world is None or problem:
        return PackageAnswer(package, State.MISSING, detail=problem)
    nearest = nearest_offered(package.version, have)
    if nearest:
        built = f" built for {package.build}" if package.build else ""
        return PackageAnswer(
            package,
            State.MISSING,
            nearest=nearest,
            detail=f"not at {package.version}{built}; the nearest published is {nearest}",
        )
    like = world.like(package.name)
    hint = f"; published is {like}" if like else ""
    return PackageAnswer(package, State.MISSING, detail=f"no package of this name{hint}")


def _resolve(
    install: Install,
    packages: Mapping[WantedPackage, PackageAnswer],
    world: World | None,
    offers: dict[str, list[Offer]],
    problem: str,
) -> ResolveAnswer:
    """Do the packages that were found fit together, with all that they depend on?"""
    there = [p for p in install.packages if packages[p].state is State.PUBLISHED]
    if world is None or problem or not there:
        state = State.MISSING if problem else State.SILENT
        return ResolveAnswer(state, install, detail=problem)
    resolved = world.resolve(Install(tuple(there), install.stream), offers)
    if resolved.problem:
        waits = any(packages[p].state is State.SILENT for p in install.packages)
        # A dependency may be in a repository that does not answer.
        state = State.SILENT if waits else State.MISSING
        return ResolveAnswer(state, install, detail=resolved.problem)
    whole = len(there) == len(install.packages)
    state = State.PUBLISHED if whole else State.SILENT
    return ResolveAnswer(state, install, resolved.packages)
