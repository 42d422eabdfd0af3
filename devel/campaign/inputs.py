"""Runs the corpus of bad inputs: `tests/bad_inputs/`, a file per command and how it must end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from devel import bad_inputs
from devel.campaign.book import Book
from devel.campaign.testbed import deadline, each

TRACEBACK = "traceback:"


def campaign(
    chosen: Sequence[bad_inputs.Case],
    minutes: float,
    say: Callable[[str], None],
    book: Book,
    at_once: int = 1,
) -> tuple[int, int, int]:
    """Try as many cases as the minutes allow: tried, with a traceback, that end wrongly besides."""
    named = {case.name: case for case in chosen}

    def attempt(_: int, name: str) -> None:
        result = bad_inputs.run(named[name])
        mistake = f"{TRACEBACK} {result.traceback}" if result.traceback else result.wrong
        if mistake:
            say(f"{name}: {mistake}")
        book.note(name, mistake)

    each(range(at_once), book.begin(named), deadline(minutes), attempt)
    crashed = [
        name for name in named if book.results.get(name, {}).get("found", "").startswith(TRACEBACK)
    ]
    return book.tried(named), len(crashed), book.bad(named) - len(crashed)
