"""Progress for a person: live on a terminal, one line per stage on a pipe.

No stage is silent for long: every 30 s a line says what it waits for.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TextIO

from kiln.base.processes import beside
from kiln.base.vocabulary import printable

_INDENT = "      "
# Seconds between two lines about what a stage waits for.
_REMINDER = 30.0


class Progress:
    """Stages and their durations. A terminal shows the running stage live (Rich).

    `reminder`: seconds between two lines about what the running stage waits for. `clock` gives the
    seconds of a monotonic clock.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        label: str = "",
        *,
        reminder: float = _REMINDER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out or sys.stderr
        self._reminder = reminder
        self._clock = clock
        self._label = f"[{label}] " if label else ""
        self._live = self._out.isatty() and not label
        # Whether a run ends when whoever reads this is gone, as with `| head`.
        self._is_needed = True
        self.seconds: dict[str, float] = {}

    def tolerate_closed_output(self) -> None:
        """Go on from now on when nobody reads this any more: a clean-up must not end for that."""
        self._is_needed = False

    def say(self, text: str) -> None:
        """Print a line that belongs to no stage."""
        self._print(f"{self._label}{text}")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """A stage; its duration goes into `seconds` even if it fails."""
        stage = Stage(self, name)
        started = self._clock()
        failed = True
        try:
            with contextlib.ExitStack() as running:
                if self._live:
                    from rich.console import Console

                    running.enter_context(Console(file=self._out).status(f"{name} …"))
                # Joined, so that no line about the stage follows the line about its end.
                running.enter_context(beside(partial(self._remind, stage), joined=True))
                yield stage
            failed = False
        finally:
            took = self._clock() - started
            self.seconds[name] = round(took, 3)
            mark = "failed" if failed else "ok"
            note = f"  {stage.note}" if stage.note else ""
            # Ctrl-C ends the `tee` of a run as well: the error to report is the run's own.
            with contextlib.suppress(OSError) if failed else contextlib.nullcontext():
                self._print(f"{self._label}{mark:<6} {name:<28} {took:6.1f} s{note}")

    def _remind(self, stage: Stage, over: threading.Event) -> None:
        """Say every `reminder` seconds what the stage waits for."""
        while not over.wait(self._reminder):
            stage.say(stage.reminder())

    def _print(self, text: str) -> None:
        # A single write: print writes the newline separately, and rows built in parallel would mix.
        with contextlib.nullcontext() if self._is_needed else contextlib.suppress(OSError):
            self._out.write(f"{printable(text)}\n")
            self._out.flush()


class Stage:
    """A running stage: its lines, what it waits for, and a note that is printed at its end."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self.note = ""
        self._what, self._limit = "", ""
        self.waits_for(f"`{name}`")

    def waits_for(self, what: str, *, limit: float | None = None) -> None:
        """Say from now on that the stage waits for this, at most `limit` seconds."""
        if what != self._what:
            self._what, self._since = what, self._progress._clock()
            self._limit = f" (limit {limit:.0f} s)" if limit is not None else ""

    def reminder(self) -> str:
        """Describe the stage's wait: for what, for how long already, and its limit."""
        seconds = self._progress._clock() - self._since
        return f"waiting for {self._what}: {seconds:.0f} s{self._limit}"

    def say(self, text: str) -> None:
        """Print a line about the stage, on a pipe too."""
        self._progress._print(f"{self._progress._label}{'':<6} {text}")

    def line(self, text: str) -> None:
        """Show a tool's output, indented; on a pipe only the log has it."""
        if self._progress._live:
            for part in text.splitlines():
                self._progress._print(f"{_INDENT}{part}")
