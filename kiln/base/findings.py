"""Findings: what `check`, `validate` and the policy report."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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

    def as_json(self) -> dict[str, Any]:
        """The finding as plain data, in the order of its fields."""
        plain = asdict(self)
        return {**plain, "rows": list(self.rows), "also_at": list(plain["also_at"])}

    def text(self, width: int = _UNWRAPPED) -> str:
        """The finding for a person: place and message, then why, fix, source, rows and places.

        `width` is the terminal's width in columns; by default lines are not folded.
        """
        details = {"value": self.path, **self.reasons(), **self._where()}
        lines = [*_head(self.head(self.message), width), *_labelled(details, width)]
        return "\n".join(lines)

    def head(self, message: str) -> str:
        """Place, level and rule before a message."""
        place = f"{self.place}: " if self.place else ""
        return f"{place}{self.level}: {self.rule}: {message}"

    def reasons(self) -> dict[str, str]:
        """What findings of one rule may share, by its label."""
        return {"why": self.why, "fix": self.hint, "source": self.source}

    def _where(self) -> dict[str, str]:
        return {"AMIs": ", ".join(self.rows), "also at": ", ".join(map(str, self.also_at))}

    def __str__(self) -> str:
        return self.text()


def grouped_text(findings: Iterable[Finding], width: int = _UNWRAPPED) -> list[str]:
    """The findings for a person, a paragraph per level, rule and shared reason, in the order of
    their first.

    What all findings of a rule share is printed once, above them; so are the AMIs of findings that
    are about scripts and not about a value of a row, whatever their rules. Those about one
    component at one place are one entry.
    """
    listed = list(findings)
    alike = Counter(_reasons_key(item) for item in listed)
    together = Counter(_rows_key(item) for item in listed if not item.path)
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in listed:
        key: tuple[object, ...] = _reasons_key(finding)
        if finding.rows and not finding.path and together[_rows_key(finding)] > 1:
            key = _rows_key(finding)
        elif alike[_reasons_key(finding)] == 1:
            # Findings of one rule may have several reasons, each of which is printed once.
            key = key[:2]
        groups.setdefault(key, []).append(finding)
    return ["\n".join(_group_lines(group, width)) for group in groups.values()]


def _reasons_key(finding: Finding) -> tuple[str, ...]:
    return (finding.level, finding.rule, finding.why, finding.hint)


def _rows_key(finding: Finding) -> tuple[str, tuple[str, ...]]:
    return (finding.level, finding.rows)


def _group_lines(group: list[Finding], width: int) -> list[str]:
    first = group[0]
    if len(group) == 1:
        return [first.text(width)]
    shared = {
        label: text
        for label, text in first.reasons().items()
        if all(finding.reasons()[label] == text for finding in group)
    }
    if all(finding.rows == first.rows and not finding.path for finding in group):
        shared["AMIs"] = ", ".join(first.rows)
    rules = ", ".join(dict.fromkeys(finding.rule for finding in group))
    count = f"{len(group)} {first.level}" + ("" if first.level == "accepted" else "s")
    lines = [f"{rules}: {count}", *_labelled(shared, width)] if any(shared.values()) else []
    entries: dict[object, list[Finding]] = {}
    for number, finding in enumerate(group):
        about = (finding.place, finding.component) if finding.component else number
        entries.setdefault(about, []).append(finding)
    for entry in entries.values():
        lines += _entry_lines(entry, shared.keys(), width)
    return lines


def _entry_lines(entry: list[Finding], shared: Collection[str], width: int) -> list[str]:
    """One or several findings about one component at one place, without what is `shared`."""
    first = entry[0]
    alike = _beginning([finding.message for finding in entry])
    lines = _head(first.head(alike or first.message), width)
    for finding in entry:
        rows, path = ", ".join(finding.rows), finding.path if finding is first else ""
        folded = alike or finding is not first
        details = {
            "what": finding.message.removeprefix(f"{alike}: ") if folded else "",
            "value": f"{path}; AMIs {rows}" if path and rows else path,
            "AMIs": "" if path or "AMIs" in shared else rows,
            **{label: text for label, text in finding.reasons().items() if label not in shared},
            "also at": ", ".join(map(str, finding.also_at)),
        }
        lines += _labelled(details, width)
    return lines


def _beginning(messages: list[str]) -> str:
    """What several messages say before their last colon, if it is the same; else empty."""
    beginnings = {message.rpartition(": ")[0] for message in messages}
    return beginnings.pop() if len(messages) > 1 and len(beginnings) == 1 else ""


def _head(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _labelled(details: Mapping[str, str], width: int) -> list[str]:
    """A line, or a folded one, for each text that is not empty, behind its label."""
    return [
        line
        for label, text in details.items()
        if text
        for line in textwrap.wrap(
            text,
            width,
            initial_indent=" " * _INDENT + f"{label:<{_LABEL}}",
            subsequent_indent=" " * (_INDENT + _LABEL),
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


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
