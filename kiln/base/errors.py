"""Findings, which `check`, `validate` and the policy report, and the one exception that the command
line turns into a message and an exit status."""

from __future__ import annotations

import contextlib
import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator
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
        """The place of the wrong value, if known."""
        if self.file:
            return Place(self.file, self.line, self.column, self.path)
        return None

    def at(self, place: Place) -> Finding:
        """A copy of the finding at a place."""
        return replace(self, file=place.file, line=place.line, column=place.column, path=place.path)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Finding:
        """The finding of plain data that `to_dict` made."""
        also_at = tuple(Place(**place) for place in data["also_at"])
        return cls(**{**data, "rows": tuple(data["rows"]), "also_at": also_at})

    def to_dict(self) -> dict[str, Any]:
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
            lines += folded(head, width, "", " " * _INDENT)
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
                lines += folded(text, width, before, after) if text else []
    return lines


def folded(text: str, width: int, before: str = "", after: str = "") -> list[str]:
    """Return the lines of a text; a value is never cut, so that it can be copied."""
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


INVALID_INPUT = 2
OPERATION_FAILED = 1


class KilnError(Exception):
    """A failure with a message for a person: what is wrong, where, and what to do.

    `exit_status` is 2 for invalid input, 1 for a failed operation. `place` and `findings` are what
    `--json` prints beside the message: they repeat what the message says, for a program.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        exit_status: int = INVALID_INPUT,
        place: Place | None = None,
        findings: Iterable[Finding] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_status = exit_status
        self.place = place
        self.findings = tuple(findings)

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data: what a task prints with `--json`."""
        data: dict[str, Any] = {
            "message": self.message,
            "hint": self.hint,
            "exit_status": self.exit_status,
        }
        if self.place:
            data |= {
                "file": self.place.file,
                "line": self.place.line,
                "column": self.place.column,
            }
        if self.findings:
            data["findings"] = [finding.to_dict() for finding in self.findings]
        return data

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


def operation_failed(message: str, *, hint: str = "") -> KilnError:
    """The error of a failed operation: a request to AWS, a download, a guest. Exit status 1."""
    return KilnError(message, hint=hint, exit_status=OPERATION_FAILED)


def refuse_errors(findings: Iterable[Finding]) -> None:
    """Raise KilnError (exit status 2) with the findings that are errors, if there are any."""
    refused = errors(findings)
    if refused:
        raise KilnError("\n".join(findings_lines(refused)), findings=refused)


def first_mistake(error: Any) -> str:
    """The first mistake in pydantic's ValidationError: where it is, and what is wrong."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the whole text"
    return f"`{where}`: {first['msg'].removeprefix('Value error, ')}"


@contextlib.contextmanager
def named_by(flag: str) -> Iterator[None]:
    """While inside, a file or folder that the flag named and that cannot be written is invalid
    input."""
    try:
        yield
    except OSError as error:
        raise KilnError(f"{flag}: {error.filename}: {error.strerror}") from None


# A list of more is no help.
_FEW, _MANY = 6, 12
# Other tools' names of the same processors: difflib cannot match them, they share too few letters.
_ALSO = {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}


def nearest(wrong: str, candidates: Iterable[str], *, likeness: float = 0.5) -> str | None:
    """The known value that a person most likely meant, or None when none is close.

    Case and surrounding spaces are ignored; `likeness` is difflib's ratio, 1 for equal texts.
    """
    options = {str(value).casefold(): str(value) for value in candidates}
    word = str(wrong).strip().casefold()
    if _ALSO.get(word) in options:
        return _ALSO[word]
    close = difflib.get_close_matches(word, options, n=1, cutoff=likeness)
    return options[close[0]] if close else None


def did_you_mean(wrong: str, candidates: Iterable[str], *, listed_by: str = "") -> str:
    """A hint: the nearest known value, if one is close, and all of them where they are few.

    Of more than a dozen only the three nearest, and the command that lists them.
    """
    options = sorted({str(value) for value in candidates}, key=_by_numbers)
    known = f"nown: {', '.join(options)}"
    if best := nearest(wrong, options):
        return f"did you mean {best!r}?" + (f" K{known}" if len(options) <= _FEW else "")
    if listed_by and len(options) > _MANY:
        close = difflib.get_close_matches(str(wrong), options, n=3, cutoff=0)
        return f"nearest: {', '.join(close)}; {listed_by} shows all {len(options)}"
    return f"k{known}"


def _by_numbers(text: str) -> list[tuple[int, str]]:
    """A key by which 595.91 comes before 595.112."""
    return [(int(part or 0) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", text)]
