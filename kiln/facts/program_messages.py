"""Messages of other programs by which Kiln knows what happened (`program_messages.yaml`)."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from kiln.base.paths import KNOWLEDGE
from kiln.facts.tables import read_table


@cache
def _table() -> dict[str, Any]:
    """Not of overlays: what a program says is no fact about a team's images."""
    return read_table(KNOWLEDGE / "program_messages.yaml")


@cache
def message(program: str, name: str) -> re.Pattern[str]:
    """The pattern of a program's message, to be searched for in its lines."""
    return re.compile(_table()[program][name]["pattern"])


@cache
def _http_reasons() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (re.compile(row["pattern"]), str(row["reason"])) for row in _table()["requests"].values()
    )


def http_reason(text: str) -> str | None:
    """Why an HTTP request failed, in a few words; `text` is what its exception says."""
    return next((reason for pattern, reason in _http_reasons() if pattern.search(text)), None)
