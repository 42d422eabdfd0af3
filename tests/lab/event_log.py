"""Reads the Xid monitor's log while it is written and rotated."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of the log in a folder and of its rotated files; every line must be whole."""
    # A rotation renames files, so the result is valid only if none was renamed in the meantime.
    before = None
    while before != (before := _files(folder)):
        texts = []
        for path in before.values():
            with suppress(FileNotFoundError):
                texts.append(path.read_text())
    return [json.loads(line) for text in texts for line in whole_lines(text)]


def whole_lines(text: str) -> list[str]:
    """The lines of a log that is being written: the last may be incomplete."""
    return text.rpartition("\n")[0].splitlines()


def _files(folder: Path) -> dict[int, Path]:
    """The log and its rotated files by inode: during a rotation a file briefly has two names."""
    result = {}
    for path in sorted(folder.glob("gpuevent.log*"), reverse=True):
        if not path.name.endswith(".position"):
            with suppress(FileNotFoundError):
                result[path.stat().st_ino] = path
    return result
