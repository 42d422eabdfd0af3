"""What a check says about the matrix or about rendered HCL: the seam between steps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Level = Literal["error", "warning"]
# From harmless to grave: what stops a build is shown last, where a terminal's reader looks first.
LEVELS: tuple[Level, ...] = ("warning", "error")

_INDENT = 4
_LABEL = 8
_UNWRAPPED = 100_000


@dataclass(frozen=True)
class Place:
    """Where a value stands: `path` is its keys in that file, such as stacks.lts.driver."""

    file: str
    line: int
    column: int | None = None
    path: str = ""

    def __str__(self) -> str:
        column = f":{self.column}" if self.column else ""
        return f"{self.file}:{self.line}{column}"


@dataclass(frozen=True)
class Finding:
    """One clash: which rule, what clashes, why that matters, and what to do.

    `message` is short enough for the first line; `why` says more. `rows` names the AMIs it holds
    for. `file`, `line`, `column` and `path` say where the wrong value stands; `also_at` the other
    places with the same value.
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
        """Where the wrong value stands, when that is known."""
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
        """For a person: place and message first, then why, what to do, source, rows and places.

        `width` is the terminal's, in columns; without it no line is folded.
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
    """Those that must stop a build."""
    return [finding for finding in findings if finding.level == "error"]


def gravest_last(findings: Iterable[Finding]) -> list[Finding]:
    """In the same order, warnings before errors."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that say the same are one: at the first place, with all rows and places."""
    causes: dict[Finding, list[Finding]] = {}
    for finding in findings:
        said = replace(finding, rows=(), file=None, line=None, column=None, path="")
        causes.setdefault(said, []).append(finding)
    return [_together(same) for same in causes.values()]


def _together(same: list[Finding]) -> Finding:
    first = same[0]
    places = dict.fromkeys(finding.place for finding in same if finding.place)
    rows = dict.fromkeys(row for finding in same for row in finding.rows)
    also = tuple(place for place in places if place != first.place)
    return replace(first, rows=tuple(rows), also_at=also)
