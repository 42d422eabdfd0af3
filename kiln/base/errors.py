"""The one exception that the command line turns into a message and an exit status."""

from __future__ import annotations

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator
from typing import Any

from kiln.base.findings import Finding, Place, errors, findings_lines

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

    def as_json(self) -> dict[str, Any]:
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
            data["findings"] = [finding.as_json() for finding in self.findings]
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


# Errors in the name itself, not in the disk or its permissions.
_NAME_ERRORS = (
    *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR),
    *(errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)


@contextlib.contextmanager
def named_by(flag: str) -> Iterator[None]:
    """While inside, a file or folder that the flag named and that cannot be written is invalid
    input."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NAME_ERRORS:
            raise
        raise KilnError(f"{flag}: {error.filename}: {error.strerror}") from None


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


def did_you_mean(wrong: str, candidates: Iterable[str]) -> str:
    """A hint: the nearest known value, if one is close, and the list of all."""
    options = sorted({str(value) for value in candidates})
    best = nearest(wrong, options)
    if best:
        return f"did you mean {best!r}? Known: {', '.join(options)}"
    return f"known: {', '.join(options)}"
