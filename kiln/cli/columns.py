"""Invoke's lists of tasks and flags, in words that stay whole."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from invoke import Program
from invoke.parser import Parser, ParserContext
from invoke.terminals import pty_size


class WholeWords(Program):
    """Invoke's program; in its help a flag or a value is never cut, so that it can be copied."""

    def _make_parser(self) -> Parser:
        """Knows the tasks whose names are in the command line: Invoke reads the signatures of all,
        and copies them, before it looks for one."""
        tasks = self.collection.task_names.items()
        contexts = [
            ParserContext(name=name, aliases=aliases, args=self.collection[name].get_arguments())
            for name, aliases in tasks
            if any(known in word for word in self.argv for known in (name, *aliases))
        ]
        return Parser(initial=self.initial_context, contexts=contexts)

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
