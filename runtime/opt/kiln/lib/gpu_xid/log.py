"""The event log: appended to, and rotated by rename.

Appending does not raise: while the disk refuses, lines wait in a bounded queue. Lines that do not
fit are counted, and the log says afterwards how many are missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Callable

_RETRY_S = (0.1, 1, 2, 5, 15, 30)
MAX_WAITING = 4096  # lines that wait for the disk


class EventLog:
    """`add` lines, then `flush`. Lines are bytes that end in a newline."""

    def __init__(
        self, path: str, max_bytes: int, keep: int, dropped_line: Callable[[int], bytes]
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self.dropped_line = dropped_line  # (events) -> the line that says how many are missing
        self.fd = -1
        self.size = 0
        self.queue: list[bytes] = []
        self.dropped = 0  # events that did not fit into the queue and are not yet reported
        self.error: OSError | None = None  # of the last attempt; None when all is written
        self.failures = 0
        self.retry_at: float | None = None  # time.monotonic() of the next attempt
        self.sync = False  # fsync is still due
        self.rotate_at = max_bytes

    def add(self, line: bytes, sync: bool = False, events: int = 1) -> None:
        """Queue a line. sync: fsync this batch. events: counted if the line has to be dropped."""
        if len(self.queue) >= MAX_WAITING and not self.flush():
            self.dropped += events
            return
        self.queue.append(line)
        self.sync = self.sync or sync

    def flush(self) -> bool:
        """Write the queue. True when nothing is left to write.

        After a failure, nothing is tried before `retry_at`.
        """
        if not (self.queue or self.dropped or self.sync):
            return True
        if self.retry_at is not None and time.monotonic() < self.retry_at:
            return False
        try:
            self._open()
            while self.queue:
                self._append(self.queue)
            if self.dropped:
                self._append([self.dropped_line(self.dropped)])
                self.dropped = 0
            if self.sync:
                # A full thin volume or NFS may refuse now what it accepted before.
                os.fsync(self.fd)
                self.sync = False
        except OSError as error:
            self.error = error
            self.retry_at = time.monotonic() + _RETRY_S[min(self.failures, len(_RETRY_S) - 1)]
            self.failures += 1
            self.close()
            return False
        self.error = self.retry_at = None
        self.failures = 0
        if self.size >= self.rotate_at:
            self._rotate()
        return True

    def _open(self) -> None:
        """Open `path` again if the open file is no longer that file: others may rotate the log."""
        if self.fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.path), os.fstat(self.fd)):
                    return
            self.close()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.fd = os.open(self.path, flags, 0o644)

    def _append(self, lines: list[bytes]) -> None:
        """Write whole lines and remove them from the list; a partly written line is cut off."""
        # `gpu-xid health` appends to the same file; its lock is not waited for.
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EAGAIN, "another process holds its lock", self.path) from None
        try:
            self.size = os.fstat(self.fd).st_size
            batch = lines[:256]
            written = os.write(self.fd, b"".join(batch))
            whole = taken = 0
            while taken < len(batch) and whole + len(batch[taken]) <= written:
                whole += len(batch[taken])
                taken += 1
            del lines[:taken]
            self.size += whole
            if taken < len(batch):
                os.ftruncate(self.fd, self.size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def _rotate(self) -> None:
        """path -> path.1 -> … -> path.keep. Where renaming fails, the log keeps growing."""
        self.rotate_at = self.size + self.max_bytes // 10  # where it fails, not at every line
        try:
            for number in range(self.keep, 1, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{self.path}.{number - 1}", f"{self.path}.{number}")
            os.rename(self.path, self.path + ".1")
            self.close()
            self._open()  # at once: readers follow this path
        except OSError:
            return
        self.rotate_at = self.max_bytes

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
