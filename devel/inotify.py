"""Waits for changes of a file without polling: inotify(7) through libc, for the benches."""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path
from types import TracebackType

_IN_MODIFY = 0x2
_IN_NONBLOCK = 0o4000


class Watch:
    """`with Watch(path) as watch: watch.wait(seconds)`. Raises OSError."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(_IN_NONBLOCK)
        if self.fd < 0 or libc.inotify_add_watch(self.fd, os.fsencode(path), _IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.fd)

    def wait(self, seconds: float) -> bool:
        """Wait for a write; False when there was none within that time."""
        ready, _, _ = select.select([self.fd], [], [], max(0, seconds))
        return bool(ready) and self.drain()

    def drain(self) -> bool:
        """Discard the pending events; False when there were none."""
        try:
            return bool(os.read(self.fd, 65536))
        except BlockingIOError:
            return False
