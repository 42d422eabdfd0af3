"""The event log: appended to, rotated by rename, and its own checkpoint.

Appending does not raise when the disk refuses: lines wait in a bounded queue until the disk accepts
them. Lines that do not fit are counted, and the log says afterwards how many are missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Callable

_MODE = 0o644
_RETRY_S = (0.1, 1, 2, 5, 15, 30)
_DISK_TROUBLE = (
    errno.EAGAIN,  # another process holds the lock
    errno.ENOSPC,
    errno.EROFS,
    errno.EDQUOT,
    errno.EIO,
    errno.EFBIG,
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EMFILE,
    errno.ENFILE,
)


class EventLog:
    """`add` lines, then `flush`. Lines are bytes that end in a newline."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        keep: int,
        queue_lines: int,
        first_line: Callable[[], bytes],
        dropped_line: Callable[[int], bytes],
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self.queue_lines = queue_lines
        self.first_line = first_line  # () -> first line of a new file, or b""
        self.dropped_line = dropped_line  # (events) -> line saying that so many are missing, or b""
        self.fd = -1
        self.inode = 0
        self.size = 0
        self.queue: list[bytes] = []
        self.dropped = 0  # events that did not fit into the queue and are not yet reported
        self.error: OSError | None = None  # of the last attempt; None when all is written
        self.failures = 0
        self.retry_at: float | None = None  # time.monotonic() of the next attempt
        self.sync = False  # fsync is still due
        self.grown = 0  # after a failed rotation: the size at which it is tried again

    def add(self, line: bytes, sync: bool = False, events: int = 1) -> None:
        """Queue a line. sync: fsync this batch.

        events: the number of events to count if the line has to be dropped.
        """
        if len(self.queue) >= self.queue_lines and not self.flush():
            self.dropped += events
            return
        self.queue.append(line)
        self.sync = self.sync or sync

    def pending(self) -> bool:
        return bool(self.queue or self.dropped or self.sync)

    def flush(self) -> bool:
        """Write the queue. True when nothing is left to write.

        After a failure, nothing is tried before `retry_at`.
        """
        if not self.pending():
            return True
        if self.retry_at is not None and time.monotonic() < self.retry_at:
            return False
        try:
            self._open()
            while self.queue:
                self._append(self.queue)
            if self.dropped:
                self._append([line for line in (self.dropped_line(self.dropped),) if line])
                self.dropped = 0
            if self.sync:
                # A full thin volume or NFS may refuse now what it accepted before.
                os.fsync(self.fd)
                self.sync = False
        except OSError as error:
            if error.errno not in _DISK_TROUBLE:
                raise
            self.error = error
            self.retry_at = time.monotonic() + _RETRY_S[min(self.failures, len(_RETRY_S) - 1)]
            self.failures += 1
            self.close()
            return False
        self.error = self.retry_at = None
        self.failures = 0
        return True

    def _open(self) -> None:
        """Open `path` again if the open file is no longer that file: others may rotate the log."""
        if self.fd >= 0:
            try:
                current = os.stat(self.path)
                opened = os.fstat(self.fd)
                if (current.st_ino, current.st_dev) == (opened.st_ino, opened.st_dev):
                    self.size = opened.st_size
                    return
            except FileNotFoundError:
                pass
            self.close()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.fd = os.open(self.path, flags, _MODE)
        self._begin()

    def _begin(self) -> None:
        status = os.fstat(self.fd)
        self.size, self.inode = status.st_size, status.st_ino
        if self.size == 0:
            self._append([line for line in (self.first_line(),) if line])

    def _append(self, lines: list[bytes]) -> None:
        """Write whole lines and remove them from the list; a partly written line is cut off."""
        # `gpu-xid health` appends to the same file; its lock is not waited for.
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EAGAIN, "another process holds its lock", self.path) from None
        try:
            self.size = os.fstat(self.fd).st_size
            while lines:
                batch = lines[:256]
                data = b"".join(batch)
                written = os.write(self.fd, data)
                whole = len(data)
                if written < whole:
                    whole, taken = 0, 0
                    for line in batch:
                        if whole + len(line) > written:
                            break
                        whole += len(line)
                        taken += 1
                    os.ftruncate(self.fd, self.size + whole)
                    del lines[:taken]
                    self.size += whole
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
                del lines[: len(batch)]
                self.size += whole
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def full(self) -> bool:
        return self.size >= max(self.max_bytes, self.grown) and not self.queue

    def rotate(self) -> None:
        """path -> path.1 -> … -> path.keep, by renaming: no reader loses a line, and `path` is
        always a file.

        Raises OSError. The log then keeps growing, and rotation is tried again a tenth later.
        """
        self.grown = self.size + self.max_bytes // 10
        # The log gets its second name first: where that is refused (chattr +a), each attempt
        # would otherwise delete the oldest file.
        if self.keep and not self._is("1"):  # true after an interrupted rotation
            if not self._is("0"):
                if os.path.exists(self.path + ".0"):  # and the log has been moved away since
                    self._shift()
                os.link(self.path, self.path + ".0")
            self._shift()
        self.close()
        new = self.path + ".new"
        if os.path.exists(new):
            os.unlink(new)
        self.fd = os.open(new, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        self._begin()  # the first line of the new file keeps the checkpoint in the file
        os.rename(new, self.path)
        self.grown = 0

    def _is(self, number: str) -> bool:
        """Whether the log and the rotated file of that number are the same file."""
        try:
            return os.path.samefile(self.path, f"{self.path}.{number}")
        except FileNotFoundError:
            return False

    def _shift(self) -> None:
        for number in range(self.keep, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{self.path}.{number - 1}", f"{self.path}.{number}")

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def tail_lines(path: str, limit: int, cut_torn_line: bool = False) -> list[bytes]:
    """The whole lines in the last `limit` bytes of a file, newest first; [] when unreadable.

    cut_torn_line: remove an incomplete last line from the file first. Its event is still in the
    ring of the kernel and is written again.
    """
    try:
        fd = os.open(path, (os.O_RDWR if cut_torn_line else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - limit)
        data = os.pread(fd, size - start, start)
        whole = data.rfind(b"\n") + 1
        if cut_torn_line and whole < len(data):
            os.ftruncate(fd, start + whole)
        lines = data[:whole].splitlines(True)
        if start:
            del lines[:1]
        lines.reverse()
        return lines
    except OSError:
        return []
    finally:
        os.close(fd)
