"""What the vendors' hosts answered for a row, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage
from kiln.preflight.demand import File, Install
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

    file: File
    state: State
    size: int | None = None
    detail: str = ""
    host: str = ""
    compared: bool = False


@dataclass(frozen=True)
class PackageAnswer:
    """A package: the version and repository that a bake would take, or the nearest version."""

    package: WantedPackage
    state: State
    version: str = ""
    repository: str = ""
    nearest: str = ""
    detail: str = ""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResolveAnswer:
    """An install: PUBLISHED if the solver found everything, with the packages it would install.

    SILENT if some of its packages could not be asked for; those that could be, fit together.
    """

    state: State
    install: Install
    packages: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class ParentAnswer:
    """The parent AMI as `name` names it. `state` is None if AWS could not be asked; `detail` says
    why, or names the AMI."""

    name: str
    state: State | None
    ami: str = ""
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
        states = [
            *([self.parent.state] if self.parent.state else []),
            *(answer.state for answer in self.files),
            *(answer.state for answer in self.packages),
            *(answer.state for answer in self.resolved),
            *(_state_of(index) for index in self.repositories),
        ]
        if State.MISSING in states:
            return State.MISSING
        return State.SILENT if State.SILENT in states else State.PUBLISHED

    def problems(self) -> list[str]:
        """What is not published, a sentence each."""
        files = [a.detail for a in self.files if a.state is State.MISSING]
        wrong = [
            f"repository {index.entry.name} ({index.repository.url}): {index.detail}"
            for index in self.repositories
            if index.state == WRONG
        ]
        # Without a reason of its own a package is missing since its repository is wrong.
        packages = [
            f"{a.package}: {a.detail}"
            for a in self.packages
            if a.state is State.MISSING and a.detail
        ]
        unmet = [
            f"dependencies do not resolve: {answer.detail}"
            for answer in self.resolved
            if answer.state is State.MISSING
        ]
        parent = [self.parent.detail] if self.parent.state is State.MISSING else []
        return list(dict.fromkeys([*parent, *files, *wrong, *packages, *unmet]))

    def silent_hosts(self) -> dict[str, str]:
        """The hosts that did not answer for this row → why."""
        hosts = {i.host: i.detail for i in self.repositories if i.state == SILENT}
        return hosts | {a.host: a.detail for a in self.files if a.state is State.SILENT}

    def as_json(self) -> dict[str, Any]:
        """The answers as plain data."""
        return {
            "name": self.recipe.name,
            "state": self.state.value,
            "problems": self.problems(),
            "silent_hosts": self.silent_hosts(),
            "parent": {
                "asked": self.parent.name,
                "state": self.parent.state.value if self.parent.state else NOT_ASKED,
                "ami": self.parent.ami or None,
                "detail": self.parent.detail,
            },
            "files": [
                {
                    "component": answer.file.component,
                    "url": answer.file.url,
                    "state": answer.state.value,
                    "size": answer.size,
                    "sha256": answer.file.sha256 or None,
                    "compared": answer.compared,
                }
                for answer in self.files
            ],
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
            "packages": [
                {
                    "component": answer.package.component,
                    "package": str(answer.package),
                    "state": answer.state.value,
                    "version": answer.version or None,
                    "repository": answer.repository or None,
                    "nearest": answer.nearest or None,
                    "detail": answer.detail,
                }
                for answer in self.packages
            ],
            "dependencies": [
                {"state": a.state.value, "packages": len(a.packages), "detail": a.detail}
                for a in self.resolved
            ],
        }


def _state_of(index: Index) -> State:
    if index.usable:
        return State.PUBLISHED
    return State.SILENT if index.state == SILENT else State.MISSING


def rows_text(rows: Sequence[RowAnswer]) -> str:
    """A table with a line per row, what is not published with its rows, the silent hosts."""
    width = max((len(row.recipe.name) for row in rows), default=0)
    head = (
        f"{'row':<{width}}  {'parent':>9}  {'files':>7}  {'repositories':>12}  {'packages':>8}  "
        "dependencies"
    )
    lines = [head, *(_line(row, width) for row in rows)]
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
    return "\n".join([*lines, "", _verdict(rows)])


def _line(row: RowAnswer, width: int) -> str:
    files = _share(answer.state for answer in row.files)
    repositories = _share(_state_of(index) for index in row.repositories)
    packages = _share(answer.state for answer in row.packages)
    closure = _closure(row)
    words = {State.PUBLISHED: "there", State.MISSING: "missing", None: NOT_ASKED}
    parent = words.get(row.parent.state, NOT_ASKED)
    return (
        f"{row.recipe.name:<{width}}  {parent:>9}  {files:>7}  {repositories:>12}  {packages:>8}  "
        f"{closure}"
    )


def _share(states: Iterable[State]) -> str:
    listed = list(states)
    return f"{listed.count(State.PUBLISHED)}/{len(listed)}" if listed else "-"


def _closure(row: RowAnswer) -> str:
    states = {answer.state for answer in row.resolved}
    count = sum(len(answer.packages) for answer in row.resolved)
    if State.MISSING in states:
        return "do not resolve"
    if State.SILENT in states:
        return f"{count} packages fit, the rest could not be asked for" if count else "not asked"
    return f"resolve to {count} packages"


def _verdict(rows: Sequence[RowAnswer]) -> str:
    states = [row.state for row in rows]
    count = len(rows)
    parts = [f"{states.count(State.PUBLISHED)} of {count} rows: everything is published"]
    missing, silent = states.count(State.MISSING), states.count(State.SILENT)
    if missing:
        parts.append(f"{missing}: something is not")
    if silent:
        parts.append(f"{silent}: not every host answered")
    return "; ".join(parts)
