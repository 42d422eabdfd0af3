"""Invoke's lists of tasks and flags, in words that stay whole."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from invoke import Program
from invoke.terminals import pty_size


class WholeWords(Program):
    """Invoke's program; in its help a flag or a value is never cut, so that it can be copied."""

    def print_columns(self, tuples: Sequence[tuple[str, str | None]]) -> None:
        """Print names and their descriptions; see `invoke.Program`, which cuts at hyphens."""
        longest = max(len(name) for name, _ in tuples)
        gap = " " * self.col_padding
        start = len(self.leading_indent) + longest + len(gap)
        for name, description in tuples:
            lines = textwrap.wrap(
                description or "",
                max(20, pty_size()[0] - 1 - start),
                break_on_hyphens=False,
                break_long_words=False,
            )
            first = f"{self.leading_indent}{name:<{longest}}{gap}"
            cells = [first + (lines or [""])[0], *lines[1:]]
            sys.stdout.write(f"\n{' ' * start}".join(cells).rstrip() + "\n")
        sys.stdout.write("\n")
