"""Folders with a short path of plain letters, for programs that cannot use any path."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from kiln.base.paths import build_dir

# Not TMPDIR: a socket's path must be short.
_SHORT = Path("/tmp")  # noqa: S108 - each folder in it is 0700


@contextlib.contextmanager
def short_path(name: str, folder: Path) -> Iterator[Path]:
    """The folder `/tmp/kiln-NAME`; `run` in it leads to `folder`, which is in this build folder.

    ssh, Packer and pytest each read some characters of a path as their own syntax (`"`, `%`, `{{`,
    `$`, `[`) or cannot read what is not ASCII, and a checkout may lie anywhere.
    That of a killed process is removed by `remove_short_paths`.
    """
    remove_short_path(name)
    short = _of(name)
    short.mkdir(mode=0o700)
    try:
        with (short / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (short / "run").symlink_to(folder.absolute())
            yield short
    finally:
        # ssh's master may be removing its socket at the same moment.
        shutil.rmtree(short, ignore_errors=True)


def remove_short_path(name: str) -> None:
    """Remove the short path of this name, however little of it a killed process has left."""
    shutil.rmtree(_of(name), ignore_errors=True)


def remove_short_paths() -> None:
    """Remove the short paths that killed processes of this checkout have left.

    One of which the link to the build folder is gone belongs to nobody known, and stays.
    """
    for short in _SHORT.glob("kiln-*"):
        with contextlib.suppress(OSError):
            # Where it led may be gone.
            folder = Path(os.readlink(short / "run"))  # noqa: PTH115 - as written, not resolved
            mine = short.stat(follow_symlinks=False).st_uid == os.getuid()
            here = build_dir() in (folder, *folder.parents)
            if mine and here and not _held(short / "lock"):
                shutil.rmtree(short)


def _of(name: str) -> Path:
    return _SHORT / f"kiln-{name}"


def _held(lock: Path) -> bool:
    """Whether a process that lives holds the lock of a short path."""
    with lock.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
