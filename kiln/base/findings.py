"""Findings: what `check`, `validate` and the policy report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

# accepted: a warning that the row accepts, with its reason.
Level = Literal["error", "warning", "accepted"]
# Errors last: in a terminal the end of the output is read first.
LEVELS: tuple[Level, ...] = ("accepted", "warning", "error")

_INDENT = 4
_LABEL = 8
_UNWRAPPED = 100_000


@dataclass(frozen=True)
class Place:
    """A place in a file. Line and column count from 1 and are None if unknown; `path` is the keys
    of a value in that file, such as stacks.lts.driver."""

    file: str
    line: int | None = None
    column: int | None = None
    path: str = ""

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)


@dataclass(frozen=True)
class Finding:
    """One problem: the rule, what is wrong, why it matters, and what to do.

    `message` fits on the first line; `why` says more. `rows` names the affected AMIs. `file`,
    `line`, `column` and `path` locate the wrong value, `also_at` lists other places that have it.
    """

    level: Level
    rule: str
    message: str
    hint: str = ""
    rows: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str = ""
    why: str = ""
    source: str = ""
    also_at: tuple[Place, ...] = ()

    @property
    def place(self) -> Place | None:
        """Where the wrong value stands, if known."""
        if self.file and self.line:
            return Place(self.file, self.line, self.column, self.path)
        return None

    def at(self, place: Place) -> Finding:
        """The same finding at a place."""
        return replace(self, file=place.file, line=place.line, column=place.column, path=place.path)

    def as_json(self) -> dict[str, Any]:
        """The finding as plain data, in the order of its fields."""
        plain = asdict(self)
        return {**plain, "rows": list(self.rows), "also_at": list(plain["also_at"])}

    def text(self, width: int = _UNWRAPPED) -> str:
        """The finding for a person: place and message, then why, fix, source, rows and places.

        `width` is the terminal's width in columns; by default lines are not folded.
        """
        place = f"{self.place}: " if self.place else ""
        head = f"{place}{self.level}: {self.rule}: {self.message}"
        lines = textwrap.wrap(
            head,
            width,
            subsequent_indent=" " * _INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        details = {
            "value": self.path,
            "why": self.why,
            "fix": self.hint,
            "source": self.source,
            "AMIs": ", ".join(self.rows),
            "also at": ", ".join(map(str, self.also_at)),
        }
        for label, text in details.items():
            if text:
                lines += textwrap.wrap(
                    text,
                    width,
                    initial_indent=" " * _INDENT + f"{label:<{_LABEL}}",
                    subsequent_indent=" " * (_INDENT + _LABEL),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that stop a build."""
    return [finding for finding in findings if finding.level == "error"]


def gravest_last(findings: Iterable[Finding]) -> list[Finding]:
    """Warnings before errors, otherwise in the given order."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in row and place: one per cause, with all rows and places."""
    causes: dict[Finding, list[Finding]] = {}
    for finding in findings:
        cause = replace(finding, rows=(), file=None, line=None, column=None, path="")
        causes.setdefault(cause, []).append(finding)
    return [_merged(group) for group in causes.values()]


def _merged(findings: list[Finding]) -> Finding:
    first = findings[0]
    places = dict.fromkeys(finding.place for finding in findings if finding.place)
    rows = dict.fromkeys(row for finding in findings for row in finding.rows)
    also = tuple(place for place in places if place != first.place)
    return replace(first, rows=tuple(rows), also_at=also)
