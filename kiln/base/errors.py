"""The one exception the front door turns into a message and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

BAD_INPUT = 2
OPERATION_FAILED = 1


class KilnError(Exception):
    """A failure with a message for a person: what is wrong, where, and what to do.

    `exit_code` is 2 for invalid input, and 1 for an operation that failed.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


def operation_failed(message: str, *, hint: str = "") -> KilnError:
    """An operation that failed: a request to AWS, a download, a disk, a guest. Exit status 1."""
    return KilnError(message, hint=hint, exit_code=OPERATION_FAILED)


# What other tools call the same thing: no letters in common, so no likeness finds it.
_ALSO = {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}


def nearest(wrong: str, known: Iterable[str], *, likeness: float = 0.5) -> str | None:
    """The known value a person most likely meant, or None when nothing is close.

    Capitals and spaces around it do not count; `likeness` is difflib's, 1 for the same.
    """
    options = {str(one).casefold(): str(one) for one in known}
    word = str(wrong).strip().casefold()
    if _ALSO.get(word) in options:
        return _ALSO[word]
    close = difflib.get_close_matches(word, options, n=1, cutoff=likeness)
    return options[close[0]] if close else None


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """A hint: the nearest right value, or the whole list when nothing is close."""
    options = sorted({str(k) for k in known})
    best = nearest(wrong, options)
    if best:
        return f"did you mean {best!r}? Known: {', '.join(options)}."
    return f"known: {', '.join(options)}."
