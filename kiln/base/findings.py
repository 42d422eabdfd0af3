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
    `component` is what it is about, if that is a component.
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
    component: str = ""

    @property
    def place(self) -> Place | None:
        """Where the wrong value stands, if known."""
        if self.file:
            return Place(self.file, self.line, self.column, self.path)
        return None

    def at(self, place: Place) -> Finding:
        """The same finding at a place."""
        return replace(self, file=place.file, line=place.line, column=place.column, path=place.path)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Finding:
        """The finding of plain data that `as_json` made."""
        also_at = tuple(Place(**place) for place in data["also_at"])
        return cls(**{**data, "rows": tuple(data["rows"]), "also_at": also_at})

    def as_json(self) -> dict[str, Any]:
        """The finding as plain data, in the order of its fields."""
        plain = asdict(self)
        return {**plain, "rows": list(self.rows), "also_at": list(plain["also_at"])}

    def __str__(self) -> str:
        return "\n".join(findings_lines([self]))


def findings_lines(findings: Iterable[Finding], width: int = _UNWRAPPED) -> list[str]:
    """The findings for a person: place and message, then why, fix, source, AMIs and places.

    Those of a rule follow each other; what they share is printed with the first. `width` is the
    terminal's width in columns; by default lines are not folded.
    """
    rules: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        rules.setdefault((finding.level, finding.rule), []).append(finding)
    lines: list[str] = []
    for group in rules.values():
        lines += [""] if lines else []
        said: set[tuple[str, str]] = set()
        for finding in group:
            place = f"{finding.place}: " if finding.place else ""
            head = f"{place}{finding.level}: {finding.rule}: {finding.message}"
            lines += _folded(head, width, "", " " * _INDENT)
            shared = {"why": finding.why, "fix": finding.hint, "source": finding.source}
            details = {
                "value": "" if finding.line else finding.path,  # the line shows it
                **{label: text for label, text in shared.items() if (label, text) not in said},
                "AMIs": ", ".join(finding.rows),
                "also at": ", ".join(map(str, finding.also_at)),
            }
            said |= set(shared.items())
            for label, text in details.items():
                before, after = f"{' ' * _INDENT}{label:<{_LABEL}}", " " * (_INDENT + _LABEL)
                lines += _folded(text, width, before, after) if text else []
    return lines


def _folded(text: str, width: int, before: str, after: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=before,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    )


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
