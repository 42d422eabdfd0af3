"""The one exception gpu-mig turns into a message and an exit code."""

from __future__ import annotations

BAD_INPUT = 2
WORLD_FAILED = 1
REBOOT_NEEDED = 3


class MigError(Exception):
    """What is wrong and what to do.

    `exit_code`: 2 mend the input, 1 the machine failed, 3 a reboot is needed.
    """

    def __init__(self, message, hint="", exit_code=BAD_INPUT):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self):
        return self.message + ("\n  " + self.hint if self.hint else "")


class StoppedError(MigError):
    """The run was told to end (SIGTERM): clean up, try nothing again."""

    def __init__(self):
        super().__init__("stopped by a signal", "", WORLD_FAILED)


def world_failed(message, hint=""):
    """A failure of something outside the program: the driver, systemd, the disk."""
    return MigError(message, hint, WORLD_FAILED)


def did_you_mean(wrong, known):
    """A hint with the nearest right value, or every known value when nothing is close."""
    import difflib  # only where something is wrong already

    options = sorted({str(k) for k in known})
    close = difflib.get_close_matches(str(wrong), options, n=1, cutoff=0.5)
    if close:
        return "did you mean {!r}?".format(close[0])
    return "known: {}.".format(", ".join(options) or "none")
