"""Folders with a short path of plain letters, for programs that cannot use any path."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

# Not TMPDIR: a socket's path must be short.
_SHORT = Path("/tmp")  # noqa: S108 - each folder in it is 0700


@contextlib.contextmanager
def short_path(name: str, folder: Path) -> Iterator[Path]:
    """The folder `/tmp/kiln-NAME`; `run` in it leads to `folder`.

    ssh, Packer and pytest each read some characters of a path as their own syntax (`"`, `%`, `{{`,
    `$`, `[`) or cannot read what is not ASCII, and a socket's path has at most 107 bytes.
    """
    remove_short_path(name)
    short = _of(name)
    short.mkdir(mode=0o700)
    try:
        (short / "run").symlink_to(folder.absolute())
        yield short
    finally:
        # ssh's master may be removing its socket at the same moment.
        shutil.rmtree(short, ignore_errors=True)


def remove_short_path(name: str) -> None:
    """Remove the short path of this name, however little of it a killed process has left."""
    shutil.rmtree(_of(name), ignore_errors=True)


def _of(name: str) -> Path:
    return _SHORT / f"kiln-{name}"
