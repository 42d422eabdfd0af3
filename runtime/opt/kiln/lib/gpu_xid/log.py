"""The event log: appended, rotated by rename, and its own checkpoint.

Appending never raises for what a disk can do: lines wait in a bounded queue until the disk
takes them, and what does not fit is counted and said in the log afterwards.
"""

import errno
import fcntl
import os
import time

_MODE = 0o644
_RETRY_S = (0.1, 1, 2, 5, 15, 30)
_DISK_TROUBLE = (
    errno.EAGAIN,  # somebody holds the lock
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

    def __init__(self, path, max_bytes, keep, queue_lines, first_line, dropped_line):
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self.queue_lines = queue_lines
        self.first_line = first_line  # () -> first line of a new file, or b""
        self.dropped_line = dropped_line  # (events) -> what says that so many are missing, or b""
        self.fd = -1
        self.inode = 0
        self.size = 0
        self.queue = []
        self.dropped = 0  # events that did not fit into the queue and are not yet owned up to
        self.error = None  # OSError of the last attempt, None when all is written
        self.failures = 0
        self.retry_at = None  # time.monotonic() of the next attempt after a failure
        self.sync = False  # what was written last has still to go to the disk
        self.grown = 0  # after a rotation that failed: the size at which it is tried again

    def add(self, line, sync=False, events=1):
        """Queue one line. sync: this batch goes to the disk, not only to the kernel.

        events: how many events the line stands for, should it have to be dropped.
        """
        if len(self.queue) >= self.queue_lines and not self.flush():
            self.dropped += events
            return
        self.queue.append(line)
        self.sync = self.sync or sync

    def pending(self):
        return bool(self.queue or self.dropped or self.sync)

    def flush(self):
        """Write what is queued. True when nothing is left to write.

        After a failure it is not tried again before `retry_at`.
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
                # A disk may refuse only now what it took before (a full thin volume, NFS).
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

    def _open(self):
        """Have an open file that is the one at `path`: somebody else may have rotated it."""
        if self.fd >= 0:
            try:
                there = os.stat(self.path)
                ours = os.fstat(self.fd)
                if (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev):
                    self.size = ours.st_size
                    return
            except FileNotFoundError:
                pass
            self.close()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.fd = os.open(self.path, flags, _MODE)
        self._begin()

    def _begin(self):
        status = os.fstat(self.fd)
        self.size, self.inode = status.st_size, status.st_ino
        if self.size == 0:
            self._append([line for line in (self.first_line(),) if line])

    def _append(self, lines):
        """Write whole lines and take them off the list; a line cut short is taken back."""
        # `gpu-xid health` appends to the same file. Who holds the lock too long is not waited for.
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

    def full(self):
        return self.size >= max(self.max_bytes, self.grown) and not self.queue

    def rotate(self):
        """path -> path.1 -> … -> path.keep. Never copied: no reader loses a line, and there is a
        file at path all the time.

        Raises OSError; the log then simply goes on growing, and a tenth later it is tried again.
        """
        self.grown = self.size + self.max_bytes // 10
        # The log gets its second name first: where it may not have one (chattr +a), the older
        # files must not be pushed off the end, one at each attempt.
        if self.keep and not self._is("1"):  # it is after a rotation that was cut short
            if not self._is("0"):
                if os.path.exists(self.path + ".0"):  # and the log was moved away since
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

    def _is(self, number):
        """Is the log also the rotated file of that number?"""
        try:
            return os.path.samefile(self.path, "%s.%s" % (self.path, number))
        except FileNotFoundError:
            return False

    def _shift(self):
        for number in range(self.keep, 0, -1):
            try:
                os.rename("%s.%d" % (self.path, number - 1), "%s.%d" % (self.path, number))
            except FileNotFoundError:
                pass

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def tail_lines(path, limit, mend=False):
    """The whole lines in the last `limit` bytes of a file, newest first; [] when unreadable.

    mend: cut off a torn last line first. What it would have said is still in the kernel's ring
    and is written again; half a JSON object helps nobody.
    """
    try:
        fd = os.open(path, (os.O_RDWR if mend else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - limit)
        data = os.pread(fd, size - start, start)
        whole = data.rfind(b"\n") + 1
        if mend and whole < len(data):
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
