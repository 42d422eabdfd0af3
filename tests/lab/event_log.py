"""The Xid monitor's log, read while it is being written and rotated."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of the log in a folder and of its rotated files; every line must be whole."""
    # A rotation under way renames files: what was read counts when none was renamed meanwhile.
    before = None
    while before != (before := _files(folder)):
        texts = []
        for path in before.values():
            with suppress(FileNotFoundError):
                texts.append(path.read_text())
    return [json.loads(line) for text in texts for line in whole_lines(text)]


def whole_lines(text: str) -> list[str]:
    """The lines of a log that is being written: the last one may be half there as yet."""
    return text.rpartition("\n")[0].splitlines()


def _files(folder: Path) -> dict[int, Path]:
    """The log and its rotated files by inode: in a rotation one has two names for a moment."""
    result = {}
    for path in sorted(folder.glob("gpuevent.log*"), reverse=True):
        if not path.name.endswith(".position"):
            with suppress(FileNotFoundError):
                result[path.stat().st_ino] = path
    return result
