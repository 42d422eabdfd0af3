"""Locks between the lab's processes and threads: files that are locked while somebody works."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until nobody else is inside with this lock file, then keep others out.

    A folder of locks may be one in which others write (KILN_LAB_STATE): no link is followed, and
    nobody else opens the file, to lock it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
