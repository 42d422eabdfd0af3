"""Progress for a person: live on a terminal, one line per stage on a pipe."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from kiln.base.printable import printable

_INDENT = "      "


class Progress:
    """Stages and their durations. A terminal shows the running stage live (Rich)."""

    def __init__(self, out: TextIO | None = None, label: str = "") -> None:
        self._out = out or sys.stderr
        self._label = f"[{label}] " if label else ""
        self._live = self._out.isatty() and not label
        self.seconds: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Print a line that belongs to no stage."""
        self._print(f"{self._label}{text}")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """A stage; its duration goes into `seconds` even if it fails."""
        stage = Stage(self, name, self._live)
        started = time.monotonic()
        failed = True
        try:
            with self._spinner(name):
                yield stage
            failed = False
        finally:
            took = time.monotonic() - started
            self.seconds[name] = round(took, 3)
            mark = "failed" if failed else "ok"
            note = f"  {stage.note}" if stage.note else ""
            self._print(f"{self._label}{mark:<6} {name:<28} {took:6.1f} s{note}")

    @contextlib.contextmanager
    def _spinner(self, name: str) -> Iterator[None]:
        if not self._live:
            yield
            return
        from rich.console import Console

        console = Console(file=self._out)
        with console.status(f"{name} …"):
            yield

    def _print(self, text: str) -> None:
        # A single write: print writes the newline separately, and rows built in parallel would mix.
        self._out.write(f"{printable(text)}\n")
        self._out.flush()


class Stage:
    """A running stage: its lines, and a note that is printed at its end."""

    def __init__(self, progress: Progress, name: str, live: bool) -> None:
        self._progress = progress
        self._live = live
        self.name = name
        self.note = ""

    def line(self, text: str) -> None:
        """Show a tool's output, indented; on a pipe only the log has it."""
        if self._live:
            for part in text.splitlines():
                self._progress._print(f"{_INDENT}{part}")
