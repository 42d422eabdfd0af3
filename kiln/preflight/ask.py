"""Asks for everything that the rows' bakes fetch: files, repositories, packages, dependencies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kiln import facts
from kiln.base.errors import KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage, nearest_published
from kiln.cloud.images import ParentNotFoundError, find_parent
from kiln.cloud.target import Target
from kiln.preflight.answers import (
    FileAnswer,
    PackageAnswer,
    ParentAnswer,
    ResolveAnswer,
    RowAnswer,
    State,
)
from kiln.preflight.demand import Demand, File, Install, demand
from kiln.preflight.indexes import (
    SILENT,
    Fetcher,
    Index,
    NoAnswerError,
    NotThereError,
    ask_repository,
)
from kiln.preflight.packages import AptRoot, DnfRoot, Offers, PackageRoot, UnusableError, most_like

# Requests that wait for the network, not for this machine.
_AT_ONCE = 16


def cache_folder() -> Path:
    """Return where fetched files and package lists are kept: below XDG_CACHE_HOME."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ami-kiln" / "preflight"


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
    `target` is AWS where there are credentials: it is asked for the parent AMIs.
    """
    demands = [demand(recipe) for recipe in recipes]
    cache = cache_folder()
    try:
        fetcher = Fetcher(cache / "files")
    except OSError as error:
        raise operation_failed(
            f"{cache} cannot be used: {error.strerror}", hint="set XDG_CACHE_HOME to another folder"
        ) from None
    files = {file.url: file for needs in demands for file in needs.files}
    repositories = list(dict.fromkeys(entry for needs in demands for entry in needs.repositories))
    say(f"asking for {len(files)} files and {len(repositories)} repositories")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        of_parents = pool.map(partial(ask_parent, target=target), recipes)
        of_files = pool.map(partial(_file, fetcher=fetcher, whole=whole_files), files.values())
        of_repositories = pool.map(
            partial(ask_repository, fetcher=fetcher, folder=folder / "keys"), repositories
        )
        asked = {recipe.name: parent for recipe, parent in zip(recipes, of_parents, strict=True)}
        fetched = dict(zip(files, of_files, strict=True))
        indexes = dict(zip(repositories, of_repositories, strict=True))
    say(f"asking apt and dnf for the packages of {len(demands)} rows")
    machines: dict[tuple[str, str], list[Demand]] = {}
    for needs in demands:
        machine = (needs.recipe.distro.id, needs.recipe.arch)
        machines.setdefault(machine, []).append(needs)

    def of_machine(machine: tuple[str, str]) -> list[RowAnswer]:
        same: dict[tuple[Index, ...], list[Demand]] = {}
        for needs in machines[machine]:
            usable = [indexes[entry] for entry in needs.repositories if indexes[entry].usable]
            same.setdefault(tuple(usable), []).append(needs)
        answers = []
        # Roots of one machine share its package lists: they are made one after the other.
        for number, (usable_here, rows) in enumerate(same.items()):
            own = folder / f"{'-'.join(machine)}-{number}"
            offered = _offered(machine, usable_here, rows, own, cache)
            for needs in rows:
                of_row = [indexes[entry] for entry in needs.repositories]
                parts = tuple(fetched[file.url] for file in needs.files)
                parent = asked[needs.recipe.name]
                answers.append(_row(needs, parent, parts, of_row, offered))
        return answers

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        rows = {row.recipe.name: row for same in pool.map(of_machine, machines) for row in same}
    return [rows[recipe.name] for recipe in recipes]


def ask_parent(recipe: Recipe, target: Target | None) -> ParentAnswer:
    """Return the answer about a row's parent AMI.

    Without a target (no credentials), and where AWS refuses to say, the row is not asked for.
    """
    named = str(recipe.source_ami)
    if target is None:
        return ParentAnswer(named, None, detail="no AWS credentials")
    try:
        parent = find_parent(recipe, target)
    except ParentNotFoundError as error:
        return ParentAnswer(named, State.MISSING, detail=error.message)
    except KilnError as error:
        return ParentAnswer(named, None, detail=error.message)
    return ParentAnswer(named, State.PUBLISHED, ami=parent.ami_id, detail=parent.name)


def _file(file: File, *, fetcher: Fetcher, whole: bool) -> FileAnswer:
    """Ask whether the host has the file, how large it is, and whether it is the known one."""
    answer = partial(FileAnswer, file.component, file.url, file.sha256 or None)
    try:
        if not (whole and file.sha256):
            return answer(State.PUBLISHED, fetcher.size(file.url))
        sha256, size = fetcher.sha256(file.url)
    except NotThereError as error:
        return answer(State.MISSING, detail=str(error))
    except NoAnswerError as error:
        return answer(State.SILENT, detail=error.reason, host=error.host)
    if sha256 != file.sha256:
        wrong = f"{file.url} has sha256 {sha256}, expected {file.sha256}"
        return answer(State.MISSING, size, wrong)
    return answer(State.PUBLISHED, size, compared=True)


@dataclass(frozen=True)
class _Offered:
    """What a machine's repositories have; `problem` says why its package tool cannot tell."""

    root: PackageRoot | None = None
    offers: Offers = field(default_factory=dict)
    problem: str = ""


def _offered(
    machine: tuple[str, str],
    usable: tuple[Index, ...],
    demands: Iterable[Demand],
    folder: Path,
    cache: Path,
) -> _Offered:
    if not usable:
        return _Offered()
    distro, arch = machine
    processor = facts.table("downloads")["processors"][arch]
    try:
        root: PackageRoot
        if usable[0].repository.kind == "apt":
            root = AptRoot(folder, cache / "apt" / "-".join(machine), processor["deb"], usable)
        else:
            kept = cache / "dnf" / "-".join(machine)
            root = DnfRoot(folder, kept, distro, processor["uname"], usable)
        names = sorted({package.name for needs in demands for package in needs.packages})
        return _Offered(root, root.offers(names))
    except UnusableError as error:
        return _Offered(problem=str(error))


def _row(
    needs: Demand,
    parent: ParentAnswer,
    files: tuple[FileAnswer, ...],
    indexes: Sequence[Index],
    offered: _Offered,
) -> RowAnswer:
    silent = any(index.state == SILENT for index in indexes)
    packages = {package: _package(package, offered, silent) for package in needs.packages}
    return RowAnswer(
        recipe=needs.recipe,
        parent=parent,
        files=files,
        repositories=tuple(indexes),
        packages=tuple(packages.values()),
        resolved=tuple(_resolve(install, packages, offered) for install in needs.installs),
    )


def _package(package: WantedPackage, offered: _Offered, silent: bool) -> PackageAnswer:
    answer = partial(PackageAnswer, package.component, str(package))
    have = offered.offers.get(package.name, [])
    for offer in have:
        if package.is_met_by(offer.version):
            return answer(State.PUBLISHED, offer.version, offer.repository)
    if silent:
        return answer(State.SILENT)
    if offered.root is None:
        return answer(State.MISSING, detail=offered.problem)
    nearest = nearest_published(package.version, (offer.version for offer in have))
    if nearest:
        built = f" built for {package.build}" if package.build else ""
        detail = f"not at {package.version}{built}; the nearest published is {nearest}"
        return answer(State.MISSING, nearest=nearest, detail=detail)
    like = most_like(package.name, offered.root.names)
    hint = f"; published is {like}" if like else ""
    return answer(State.MISSING, detail=f"no package of this name{hint}")


def _resolve(
    install: Install, packages: Mapping[WantedPackage, PackageAnswer], offered: _Offered
) -> ResolveAnswer:
    """Ask whether the packages that were found fit together, with all that they depend on."""
    states = {package: packages[package].state for package in install.packages}
    there = tuple(package for package, state in states.items() if state is State.PUBLISHED)
    if offered.root is None or not there:
        state = State.MISSING if offered.problem else State.SILENT
        return ResolveAnswer(state, detail=offered.problem)
    resolved = offered.root.resolve(Install(there, install.stream), offered.offers)
    if resolved.problem:
        # A dependency may be in a repository that does not answer.
        waits = State.SILENT in states.values()
        return ResolveAnswer(State.SILENT if waits else State.MISSING, detail=resolved.problem)
    whole = len(there) == len(install.packages)
    return ResolveAnswer(State.PUBLISHED if whole else State.SILENT, len(resolved.packages))
