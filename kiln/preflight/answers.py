"""Answers of the vendors' hosts for a row, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kiln.base.recipe import Recipe
from kiln.preflight.indexes import Answer, Index, State


@dataclass(frozen=True, kw_only=True)
class FileAnswer(Answer):
    """A file that a script fetches: size in bytes if the host says it; `compared` with its hash."""

    component: str
    url: str
    sha256: str | None
    size: int | None = None
    compared: bool = False


@dataclass(frozen=True, kw_only=True)
class PackageAnswer(Answer):
    """A package: the version and repository that a bake would take, or the nearest version."""

    component: str
    package: str
    version: str | None = None
    repository: str | None = None
    nearest: str | None = None


@dataclass(frozen=True, kw_only=True)
class ResolveAnswer(Answer):
    """An install: PUBLISHED if the solver found everything, with how many packages it installs.

    SILENT if some of its packages could not be asked for; those that could be, fit together.
    """

    packages: int = 0


@dataclass(frozen=True, kw_only=True)
class ParentAnswer(Answer):
    """The parent AMI as the row asks for it; `detail` names it, or says why there is none."""

    asked: str
    ami: str | None = None


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
    def answers(self) -> tuple[Answer, ...]:
        """All of them."""
        return (self.parent, *self.files, *self.repositories, *self.packages, *self.resolved)

    @property
    def state(self) -> State:
        """MISSING if anything is, else SILENT if anything is, else PUBLISHED.

        A parent that could not be asked for is not counted: it needs credentials.
        """
        states = {answer.state for answer in self.answers}
        return next((s for s in (State.MISSING, State.SILENT) if s in states), State.PUBLISHED)

    def problems(self) -> list[str]:
        """Return what is not published, a sentence each.

        A package without a reason of its own is missing since its repository is.
        """
        missing = (a.detail for a in self.answers if a.state is State.MISSING and a.detail)
        return list(dict.fromkeys(missing))

    def silent_hosts(self) -> dict[str, str]:
        """Return the hosts that did not answer for this row → why."""
        return {a.host: a.detail for a in self.answers if a.state is State.SILENT and a.host}

    def to_dict(self) -> dict[str, Any]:
        """Return the answers as plain data."""
        return {
            "name": self.recipe.name,
            "state": self.state,
            "problems": self.problems(),
            "silent_hosts": self.silent_hosts(),
            "parent": asdict(self.parent),
            "files": [asdict(answer) for answer in self.files],
            "repositories": [
                {
                    "name": index.entry.name,
                    "url": index.repository.url,
                    "signed": index.entry.signed,
                    "state": index.state,
                    "detail": index.detail,
                }
                for index in self.repositories
            ],
            "packages": [asdict(answer) for answer in self.packages],
            "dependencies": [asdict(answer) for answer in self.resolved],
        }

    def cells(self) -> list[str]:
        """Return the row's cells of the table with `HEADINGS`."""
        words = {State.PUBLISHED: "there", State.MISSING: "missing"}
        return [
            self.recipe.name,
            words.get(self.parent.state, self.parent.state.value),
            _share(self.files),
            _share(self.repositories),
            _share(self.packages),
            _closure(self.resolved),
        ]


HEADINGS = ("row", "parent", "files", "repositories", "packages", "dependencies")


def summary_text(rows: Sequence[RowAnswer]) -> str:
    """Return what is not published with its rows, the hosts that did not answer, the verdict."""
    lines = []
    problems: dict[str, list[str]] = {}
    hosts: dict[tuple[str, str], int] = {}
    for row in rows:
        for problem in row.problems():
            problems.setdefault(problem, []).append(row.recipe.name)
        for host in row.silent_hosts().items():
            hosts[host] = hosts.get(host, 0) + 1
    if problems:
        lines += ["", "not published:"]
        for problem, names in problems.items():
            lines += [f"  {problem}", f"    AMIs    {', '.join(names)}"]
    if hosts:
        lines += ["", "no answer from:"]
        lines += [
            f"  {host}: {why} ({number} of {len(rows)} rows)"
            for (host, why), number in sorted(hosts.items())
        ]
    reasons = sorted({row.parent.detail for row in rows if row.parent.state is State.NOT_ASKED})
    lines += ["", *(f"parents not asked for: {reason}" for reason in reasons)] if reasons else []
    states = [row.state for row in rows]
    verdict = f"{states.count(State.PUBLISHED)} of {len(rows)} rows: everything is published"
    if missing := states.count(State.MISSING):
        verdict += f"; {missing}: something is not"
    if silent := states.count(State.SILENT):
        verdict += f"; {silent}: not every host answered"
    return "\n".join([*lines, "", verdict])


def _share(answers: Sequence[Answer]) -> str:
    published = [answer.state for answer in answers].count(State.PUBLISHED)
    return f"{published}/{len(answers)}" if answers else "-"


def _closure(resolved: Iterable[ResolveAnswer]) -> str:
    states = {answer.state for answer in resolved}
    count = sum(answer.packages for answer in resolved)
    if State.MISSING in states:
        return "do not resolve"
    if State.SILENT in states:
        return f"{count} packages fit, the rest could not be asked for" if count else "not asked"
    return f"resolve to {count} packages"
