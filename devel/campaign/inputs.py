"""Runs the corpus of bad inputs: `tests/bad_inputs/`, a file per command and how it must end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from devel import bad_inputs
from devel.campaign.book import Book
from devel.campaign.world import deadline

TRACEBACK = "traceback:"


def campaign(
    chosen: Sequence[bad_inputs.Case], minutes: float, say: Callable[[str], None], book: Book
) -> tuple[int, int, int]:
    """Try as many cases as the minutes allow: tried, with a traceback, that end wrongly besides."""
    until = deadline(minutes)
    named = {case.name: case for case in chosen}
    for name in book.begin(named):
        if time.monotonic() > until:
            break
        result = bad_inputs.run(named[name])
        found = f"{TRACEBACK} {result.traceback}" if result.traceback else result.wrong
        if found:
            say(f"{name}: {found}")
        book.note(name, found)
    crashed = [
        name for name in named if book.results.get(name, {}).get("found", "").startswith(TRACEBACK)
    ]
    return book.tried(named), len(crashed), book.bad(named) - len(crashed)
