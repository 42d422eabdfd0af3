"""The exception that gpu-mig reports as a message and an exit status."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

INVALID_INPUT = 2
OPERATION_FAILED = 1
REBOOT_NEEDED = 3


class MigError(Exception):
    """A mistake, and the remedy.

    `exit_code`: 2 invalid input, 1 operation failed, 3 a reboot is needed.
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = INVALID_INPUT) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return self.message + ("\n  " + self.hint if self.hint else "")


class StoppedError(MigError):
    """SIGTERM, SIGINT or SIGHUP was received: clean up, do not retry."""

    def __init__(self) -> None:
        super().__init__("stopped by a signal", "", OPERATION_FAILED)


def operation_failed(message: str, hint: str = "") -> MigError:
    """A failure outside the program: of the driver, systemd or the disk."""
    return MigError(message, hint, OPERATION_FAILED)


def did_you_mean(wrong: object, known: Iterable[object]) -> str:
    """A hint with the nearest valid value, or every valid value when none is near."""
    options = sorted({str(k) for k in known})
    close = difflib.get_close_matches(str(wrong), options, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: {}".format(", ".join(options) or "none")
