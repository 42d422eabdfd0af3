"""Reading /dev/kmsg: record format, non-blocking drain, and the exact count of what was lost.

A record is `PREFIX,SEQ,USEC,FLAGS[,…];TEXT\n[ KEY=value\n…]` (Documentation/ABI/testing/dev-kmsg).
PREFIX is facility << 3 | level. The kernel's own lines have facility 0, and nothing written
from user space can: devkmsg_write() replaces it.
"""

import errno
import os

# One read returns one record; the kernel refuses a smaller buffer with EINVAL and, on some
# versions, drops the record.
RECORD_BYTES = 8192
# Records that wait in memory for the parser: some 4 MiB at most, and only in a storm.
_BACKLOG = 30000
_HAND_OUT = 64


class Lost:
    """The records between `after` (last seen) and `first` (next one there) were overwritten."""

    __slots__ = ("after", "first")

    def __init__(self, after, first):
        self.after = after
        self.first = first


def sequence(record):
    """Sequence number of a record."""
    return int(record.split(",", 2)[1])


def decode(record):
    """Record (text) -> (prefix, sequence, microseconds since boot, text).

    Raises ValueError for what is no kmsg record.
    """
    head, semicolon, rest = record.partition(";")
    fields = head.split(",", 3)
    if not semicolon or len(fields) < 3:
        raise ValueError("not a kmsg record")
    text = rest.partition("\n")[0]
    if "\\x" in text:
        text = unescape(text.encode("utf-8", "replace"))
    return int(fields[0]), int(fields[1]), int(fields[2]), text


def unescape(raw):
    r"""Undo the kernel's `\xNN` (everything not printable ASCII, and the backslash itself)."""
    first, *parts = raw.split(b"\\x")
    for part in parts:
        try:
            first += bytes((int(part[:2], 16),)) + part[2:]
        except ValueError:
            first += b"\\x" + part
    return first.decode("utf-8", "replace")


class KmsgReader:
    """The kernel log from its oldest record on. Never blocks; `fd` is for poll."""

    ended = False  # the kernel does not stop talking; journalctl may

    def __init__(self, path="/dev/kmsg"):
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.read = os.read
        self.last = ""  # the last record read, whole: parsed only when somebody asks
        self.first_seq = None  # number of the oldest record there was when reading began
        self.backlog = []  # read, but not yet handed out
        self.drained = False

    def close(self):
        os.close(self.fd)

    def rewind(self):
        """Go back to the oldest record the ring still has."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.last = ""

    def last_seen(self):
        """(sequence, microseconds) of the last record read, or (None, None)."""
        if not self.last:
            return None, None
        fields = self.last.split(",", 3)
        return int(fields[1]), int(fields[2].partition(";")[0])

    @staticmethod
    def decode(record):
        """(prefix, sequence, microseconds, text), marks for the line (none from here)."""
        return decode(record), None

    def drain(self, limit=10000, backlog=_BACKLOG):
        """Yield records that may matter, and `Lost`, until the end or `limit` of them.

        Sets `drained` to whether the end was reached. The ring may be small (128 KiB hold some
        1,300 records) and parsing takes longer than writing: so all there is is taken out of the
        ring first, and again after every few records handed out. backlog: so many at most.
        """
        self.drained = False
        waiting = self.backlog
        while limit > 0:
            self._fetch(waiting, backlog)
            if not waiting:
                self.drained = True
                return
            some = waiting[:_HAND_OUT]
            del waiting[:_HAND_OUT]
            limit -= len(some)
            for record in some:
                yield record

    def _fetch(self, waiting, backlog):
        """Read to the end of the ring, or until enough waits. Keeps what `drain` hands out.

        The two tests stand in for the parser: almost all kernel lines are somebody else's. They
        are made on text, as `in` on bytes costs five times as much (it first tries a number).
        """
        read, fd = self.read, self.fd
        overrun = False
        odd = not self.last  # the record to come is the first, or the first after an overrun
        while len(waiting) < backlog:
            try:
                record = read(fd, RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    odd = overrun = True
                    continue
                raise
            if not record:  # a plain file instead of the device
                return
            if odd:
                if self.first_seq is None:
                    self.first_seq = sequence(record)
                elif overrun and self.last:
                    lost = Lost(sequence(self.last), sequence(record))
                    if lost.first > lost.after + 1:
                        waiting.append(lost)
                odd = overrun = False
            self.last = record
            if "NVRM: " in record or "nvidia-nvswitch" in record:
                waiting.append(record)

    def holds(self, seq, usec):
        """Is the record with this number and time still in the ring? Then it is the same kernel."""
        found = False
        while not found:
            try:
                record = self.read(self.fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue
            if not record:
                break
            fields = record.split(b",", 3)
            found = int(fields[1]) == seq and int(fields[2].split(b";")[0]) == usec
        self.rewind()
        return found
