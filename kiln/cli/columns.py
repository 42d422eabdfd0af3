"""Invoke's program: its lists of tasks and flags in words that stay whole, its start short."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence

from invoke import Collection, Program
from invoke.terminals import pty_size


class WholeWords(Program):
    """Invoke's program; in its help a flag or a value is never cut, so that it can be copied."""

    def parse_tasks(self) -> None:
        """Parse the tasks and their flags; see `invoke.Program`, whose parser copies all tasks with
        all their flags: it gets those that the line names."""
        whole: Collection = self.collection
        # Its word need not stand alone: --help=TASK, -hTASK.
        if not self.args.help.value:
            self.collection = _named(whole, self.core.unparsed)
        try:
            super().parse_tasks()
        finally:
            self.collection = whole

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


def _named(whole: Collection, words: Iterable[str]) -> Collection:
    """The tasks and the groups of tasks that some word may be."""
    first = {word.partition(".")[0] for word in words}
    named = Collection()
    for name, task in whole.tasks.items():
        if first & {name, *task.aliases}:
            named.add_task(task, name)
    for name, group in whole.collections.items():
        if name in first:
            named.add_collection(group, name)
    return named
