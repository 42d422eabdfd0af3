"""What the vendors' hosts answered for a row, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kiln.base.recipe import Recipe
from kiln.preflight.indexes import SILENT, WRONG, Index

# Of a parent AMI that AWS could not be asked for.
NOT_ASKED = "not asked"


class State(Enum):
    """Whether something is there; SILENT if nobody could tell."""

    PUBLISHED = "published"
    MISSING = "not published"
    SILENT = "no answer"


@dataclass(frozen=True)
class FileAnswer:
    """A file that a script fetches: size in bytes if the host says it; `compared` with its hash."""

    component: str
    url: str
    sha256: str | None
    state: State
    size: int | None = None
    detail: str = ""
    host: str = ""
    compared: bool = False


@dataclass(frozen=True)
class PackageAnswer:
    """A package: the version and repository that a bake would take, or the nearest version."""

    component: str
    package: str
    state: State
    version: str | None = None
    repository: str | None = None
    nearest: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class ResolveAnswer:
    """An install: PUBLISHED if the solver found everything, with how many packages it installs.

    SILENT if some of its packages could not be asked for; those that could be, fit together.
    """

    state: State
    packages: int = 0
    detail: str = ""


@dataclass(frozen=True)
class ParentAnswer:
    """The parent AMI as the row asks for it. `state` is None if AWS could not be asked; `detail`
    says why, or names the AMI."""

    asked: str
    state: State | None
    ami: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class RowAnswer:
    """All answers for a row."""

    recipe: Recipe
    parent: ParentAnswer
    files: tuple[FileAnswer, ...]
    repositories: tuple[Index, ...]
    packages: tuple[PackageAnswer, ...]
    resolved: tuple[ResolveAnswer, ...]

    @property
    def state(self) -> State:
        """MISSING if anything is, else SILENT if anything is, else PUBLISHED.

        A parent that could not be asked for is not counted: it needs credentials.
        """
        answers: list[Any] = [self.parent, *self.files, *self.packages, *self.resolved]
        states = {*(answer.state for answer in answers), *map(_state_of, self.repositories)}
        return next((s for s in (State.MISSING, State.SILENT) if s in states), State.PUBLISHED)

    def problems(self) -> list[str]:
        """What is not published, a sentence each."""
        found = [self.parent.detail] if self.parent.state is State.MISSING else []
        found += [answer.detail for answer in self.files if answer.state is State.MISSING]
        found += [
            f"repository {index.entry.name} ({index.repository.url}): {index.detail}"
            for index in self.repositories
            if index.state == WRONG
        ]
        # Without a reason of its own a package is missing since its repository is wrong.
        found += [
            f"{answer.package}: {answer.detail}"
            for answer in self.packages
            if answer.state is State.MISSING and answer.detail
        ]
        found += [
            f"dependencies do not resolve: {answer.detail}"
            for answer in self.resolved
            if answer.state is State.MISSING
        ]
        return list(dict.fromkeys(found))

    def silent_hosts(self) -> dict[str, str]:
        """The hosts that did not answer for this row → why."""
        hosts = {i.host: i.detail for i in self.repositories if i.state == SILENT}
        return hosts | {a.host: a.detail for a in self.files if a.state is State.SILENT}

    def as_json(self) -> dict[str, Any]:
        """The answers as plain data."""
        files = ("component", "url", "state", "size", "sha256", "compared")
        packages = ("component", "package", "state", "version", "repository", "nearest", "detail")
        return {
            "name": self.recipe.name,
            "state": self.state.value,
            "problems": self.problems(),
            "silent_hosts": self.silent_hosts(),
            "parent": _plain(self.parent, ("asked", "state", "ami", "detail")),
            "files": [_plain(answer, files) for answer in self.files],
            "repositories": [
                {
                    "name": index.entry.name,
                    "url": index.repository.url,
                    "state": index.state,
                    "detail": index.detail,
                    "checksums": dict(index.checksums),
                }
                for index in self.repositories
            ],
            "packages": [_plain(answer, packages) for answer in self.packages],
            "dependencies": [
                _plain(answer, ("state", "packages", "detail")) for answer in self.resolved
            ],
        }


def _plain(answer: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return these fields of an answer as plain data."""
    state = answer.state.value if answer.state else NOT_ASKED
    return {name: state if name == "state" else getattr(answer, name) for name in names}


def rows_text(rows: Sequence[RowAnswer]) -> str:
    """Return a table with a line per row, what is not published with its rows, the silent hosts."""
    lines = _table(rows)
    problems: dict[str, list[str]] = {}
    hosts: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for problem in row.problems():
            problems.setdefault(problem, []).append(row.recipe.name)
        for host in row.silent_hosts().items():
            hosts.setdefault(host, []).append(row.recipe.name)
    if problems:
        lines += ["", "not published:"]
        for problem, names in problems.items():
            lines += [f"  {problem}", f"    AMIs    {', '.join(names)}"]
    if hosts:
        lines += ["", "no answer from:"]
        lines += [
            f"  {host}: {why} ({len(names)} of {len(rows)} rows)"
            for (host, why), names in sorted(hosts.items())
        ]
    reasons = sorted({row.parent.detail for row in rows if row.parent.state is None})
    lines += ["", *(f"parents not asked for: {reason}" for reason in reasons)] if reasons else []
    states = [row.state for row in rows]
    verdict = f"{states.count(State.PUBLISHED)} of {len(rows)} rows: everything is published"
    if missing := states.count(State.MISSING):
        verdict += f"; {missing}: something is not"
    if silent := states.count(State.SILENT):
        verdict += f"; {silent}: not every host answered"
    return "\n".join([*lines, "", verdict])


def _table(rows: Sequence[RowAnswer]) -> list[str]:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("row")
    for heading in ("parent", "files", "repositories", "packages"):
        table.add_column(heading, justify="right")
    table.add_column("dependencies")
    words = {State.PUBLISHED: "there", State.MISSING: "missing", None: NOT_ASKED}
    for row in rows:
        table.add_row(
            row.recipe.name,
            words[row.parent.state],
            _share(answer.state for answer in row.files),
            _share(map(_state_of, row.repositories)),
            _share(answer.state for answer in row.packages),
            _closure(row),
        )
    console = Console(width=1000, color_system=None)
    with console.capture() as shown:
        console.print(table, highlight=False)
    return [line.rstrip() for line in shown.get().splitlines()]


def _state_of(index: Index) -> State:
    if index.usable:
        return State.PUBLISHED
    return State.SILENT if index.state == SILENT else State.MISSING


def _share(states: Iterable[State]) -> str:
    listed = list(states)
    return f"{listed.count(State.PUBLISHED)}/{len(listed)}" if listed else "-"


def _closure(row: RowAnswer) -> str:
    states = {answer.state for answer in row.resolved}
    count = sum(answer.packages for answer in row.resolved)
    if State.MISSING in states:
        return "do not resolve"
    if State.SILENT in states:
        return f"{count} packages fit, the rest could not be asked for" if count else NOT_ASKED
    return f"resolve to {count} packages"
