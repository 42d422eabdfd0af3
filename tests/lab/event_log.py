"""Reads the Xid monitor's log while it is written."""

from __future__ import annotations


def whole_lines(text: str) -> list[str]:
    """The lines of a log that is being written: the last may be incomplete."""
    return text.rpartition("\n")[0].splitlines()
