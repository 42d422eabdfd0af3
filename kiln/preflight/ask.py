"""Asks for everything that the rows' bakes fetch: files, repositories, packages, dependencies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kiln import components, facts
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage, nearest_published
from kiln.cloud.images import ParentNotFoundError, find_parent
from kiln.cloud.target import Target
from kiln.components import Step
from kiln.components.package_repositories import Repository, row_repositories
from kiln.facts.packages import locked_hashes
from kiln.preflight.answers import (
    FileAnswer,
    PackageAnswer,
    ParentAnswer,
    ResolveAnswer,
    RowAnswer,
)
from kiln.preflight.indexes import (
    Fetcher,
    Index,
    NoAnswerError,
    NotThereError,
    State,
    ask_repository,
)
from kiln.preflight.packages import AptRoot, DnfRoot, Offers, SolverError, most_like

# Requests that wait for the network, not for this machine.
_AT_ONCE = 16
# Installed before the others and removed again: they would conflict with them.
_APART = ("NVIDIA_OTHER_PACKAGES",)
_UNRESOLVED = "dependencies do not resolve: "


@dataclass(frozen=True)
class File:
    """A file that a component's script fetches; `sha256` is empty if nobody knows it yet."""

    component: str
    url: str
    sha256: str


@dataclass(frozen=True)
class Install:
    """Packages that must fit together on one machine; dnf enables the module `stream` first."""

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
    """Return what a bake of the recipe fetches."""
    steps = components.steps(recipe)
    return Demand(
        recipe=recipe,
        files=tuple(file for step in steps for file in _files(step)),
        repositories=row_repositories(recipe, steps),
        installs=tuple(_installs(steps)),
    )


def _files(step: Step) -> Iterator[File]:
    for download in step.downloads:
        known = facts.known_sha256(download.url)
        sha256 = locked_hashes().get(download.url) or (known.sha256 if known else "")
        yield File(step.name, download.url, sha256)


def _installs(steps: Sequence[Step]) -> Iterator[Install]:
    variables = {name: value for step in steps for name, value in step.env.items()}
    from_repository = variables.get("NVIDIA_DRIVER_SOURCE") == "repo"
    for apart, stream in ((False, "NVIDIA_DRIVER_STREAM"), (True, "NVIDIA_OTHER_STREAM")):
        packages = dict.fromkeys(
            package
            for step in steps
            for variable, named in step.packages.items()
            if (variable in _APART) is apart
            for package in named
        )
        branch = variables.get(stream, "") if from_repository else ""
        if packages or not apart:
            yield Install(tuple(packages), f"nvidia-driver:{branch}" if branch else "")


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
    fetcher = Fetcher(cache_folder() / "files")
    files = {file.url: file for needs in demands for file in needs.files}
    repositories = list(dict.fromkeys(entry for needs in demands for entry in needs.repositories))
    say(f"asking for {len(files)} files and {len(repositories)} repositories")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        about_parents = pool.map(partial(ask_parent, target=target), recipes)
        about_files = pool.map(partial(_file, fetcher=fetcher, whole=whole_files), files.values())
        about_repositories = pool.map(
            partial(ask_repository, fetcher=fetcher, folder=folder / "keys"), repositories
        )
        asked = dict(zip((recipe.name for recipe in recipes), about_parents, strict=True))
        fetched = dict(zip(files, about_files, strict=True))
        indexes = dict(zip(repositories, about_repositories, strict=True))
    say(f"asking apt and dnf for the packages of {len(demands)} rows")
    machines: dict[tuple[str, str], list[Demand]] = {}
    for needs in demands:
        machines.setdefault((needs.recipe.distro.id, needs.recipe.arch), []).append(needs)

    def rows(machine: tuple[str, str]) -> dict[str, RowAnswer]:
        """Answer for the rows of one machine, whose roots share their package lists."""
        names = sorted({package.name for needs in machines[machine] for package in needs.packages})
        roots: dict[tuple[Index, ...], _Offered] = {}
        answers = {}
        for needs in machines[machine]:
            here = tuple(indexes[entry] for entry in needs.repositories)
            usable = tuple(index for index in here if index.usable)
            if usable not in roots:
                own = folder / f"{'-'.join(machine)}-{len(roots)}"
                roots[usable] = _offered(machine, usable, names, own)
            offered = roots[usable]
            packages = {
                package: _package(
                    package, offered, silent=any(i.state is State.SILENT for i in here)
                )
                for package in needs.packages
            }
            answers[needs.recipe.name] = RowAnswer(
                recipe=needs.recipe,
                parent=asked[needs.recipe.name],
                files=tuple(fetched[file.url] for file in needs.files),
                repositories=here,
                packages=tuple(packages.values()),
                resolved=tuple(_resolve(install, packages, offered) for install in needs.installs),
            )
        return answers

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        by_name = {name: row for same in pool.map(rows, machines) for name, row in same.items()}
    return [by_name[recipe.name] for recipe in recipes]


def ask_parent(recipe: Recipe, target: Target | None) -> ParentAnswer:
    """Return the answer about a row's parent AMI.

    Without a target (no credentials), and where AWS refuses to say, the row is not asked for.
    """
    answer = partial(ParentAnswer, asked=str(recipe.source_ami))
    if target is None:
        return answer(state=State.NOT_ASKED, detail="no AWS credentials")
    try:
        parent = find_parent(recipe, target)
    except ParentNotFoundError as error:
        return answer(state=State.MISSING, detail=error.message)
    except KilnError as error:
        return answer(state=State.NOT_ASKED, detail=error.message)
    return answer(state=State.PUBLISHED, ami=parent.ami_id, detail=parent.name)


def _file(file: File, *, fetcher: Fetcher, whole: bool) -> FileAnswer:
    """Ask whether the host has the file, how large it is, and whether it is the known one."""
    known = file.sha256 or None
    answer = partial(FileAnswer, component=file.component, url=file.url, sha256=known)
    try:
        if not (whole and known):
            return answer(state=State.PUBLISHED, size=fetcher.size(file.url))
        sha256, size = fetcher.sha256(file.url)
    except NotThereError as error:
        return answer(state=State.MISSING, detail=str(error))
    except NoAnswerError as error:
        return answer(state=State.SILENT, detail=error.reason, host=error.host)
    if sha256 != known:
        wrong = f"{file.url} has sha256 {sha256}, expected {known}"
        return answer(state=State.MISSING, size=size, detail=wrong)
    return answer(state=State.PUBLISHED, size=size, compared=True)


@dataclass(frozen=True)
class _Offered:
    """Packages of a machine's repositories; `problem` says why its package tool cannot tell."""

    root: AptRoot | DnfRoot | None = None
    offers: Offers = field(default_factory=dict)
    problem: str = ""


def _offered(
    machine: tuple[str, str], usable: Sequence[Index], names: Sequence[str], folder: Path
) -> _Offered:
    if not usable:
        return _Offered()
    distro, arch = machine
    processor = facts.table("downloads")["processors"][arch]
    root: AptRoot | DnfRoot
    try:
        if usable[0].repository.kind == "apt":
            lists = cache_folder() / "apt" / "-".join(machine)
            root = AptRoot(folder, lists, processor["deb"], usable)
        else:
            cache = cache_folder() / "dnf" / "-".join(machine)
            root = DnfRoot(folder, cache, distro, processor["uname"], usable)
    except SolverError as error:
        return _Offered(problem=str(error))
    return _Offered(root, root.offers(names))


def _package(package: WantedPackage, offered: _Offered, *, silent: bool) -> PackageAnswer:
    """Ask for one package; `silent` if one of the row's repositories did not answer."""
    answer = partial(PackageAnswer, component=package.component, package=str(package))
    have = offered.offers.get(package.name, [])
    for offer in have:
        if package.is_met_by(offer.version):
            return answer(state=State.PUBLISHED, version=offer.version, repository=offer.repository)
    if silent:
        return answer(state=State.SILENT)
    missing = partial(answer, state=State.MISSING)
    if offered.root is None:
        return missing(detail=f"{package}: {offered.problem}" if offered.problem else "")
    nearest = nearest_published(package.version, (offer.version for offer in have))
    if nearest:
        built = f" built for {package.build}" if package.build else ""
        detail = f"not at {package.version}{built}; the nearest published is {nearest}"
        return missing(nearest=nearest, detail=f"{package}: {detail}")
    like = most_like(package.name, offered.root.names)
    hint = f"; published is {like}" if like else ""
    return missing(detail=f"{package}: no package of this name{hint}")


def _resolve(
    install: Install, packages: Mapping[WantedPackage, PackageAnswer], offered: _Offered
) -> ResolveAnswer:
    """Ask whether the packages that were found fit together, with all that they depend on."""
    states = {package: packages[package].state for package in install.packages}
    there = [package for package, state in states.items() if state is State.PUBLISHED]
    if offered.root is None or not there:
        state = State.MISSING if offered.problem else State.SILENT
        return ResolveAnswer(state=state, detail=_UNRESOLVED + offered.problem)
    try:
        number = offered.root.resolve(there, install.stream, offered.offers)
    except SolverError as error:
        # A dependency may be in a repository that does not answer.
        state = State.SILENT if State.SILENT in states.values() else State.MISSING
        return ResolveAnswer(state=state, detail=f"{_UNRESOLVED}{error}")
    whole = len(there) == len(states)
    return ResolveAnswer(state=State.PUBLISHED if whole else State.SILENT, packages=number)
