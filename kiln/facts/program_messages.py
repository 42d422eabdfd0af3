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
def _hints() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (re.compile(row["pattern"]), str(row["hint"])) for row in _table()["hints"].values()
    )


@cache
def _http_reasons() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (re.compile(row["pattern"]), str(row["reason"])) for row in _table()["requests"].values()
    )


def http_reason(text: str) -> str | None:
    """Why an HTTP request failed, in a few words; `text` is what its exception says."""
    return next((reason for pattern, reason in _http_reasons() if pattern.search(text)), None)


def blames_proxy(words: str, host: str, port: int) -> bool:
    """Whether a tool's last words are those of one whose proxy, at this host and port, may fail."""
    patterns = (
        row["pattern"].replace("{host}", re.escape(host)).replace("{port}", str(port))
        for row in _table()["proxy"].values()
    )
    return any(re.search(pattern, words) for pattern in patterns)


def hints(words: str, status: int | None) -> tuple[str, ...]:
    """What to do about a command that failed, by its last words and its exit status."""
    by_status = _table()["exit_statuses"].get(str(status))
    by_words = [hint for pattern, hint in _hints() if pattern.search(words)]
    return (*by_words, *([by_status] if by_status else []))
