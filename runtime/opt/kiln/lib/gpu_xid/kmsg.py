"""Reading /dev/kmsg: record format, non-blocking reads, and the exact count of lost records.

A record is `PREFIX,SEQ,USEC,FLAGS[,…];TEXT` and continuation lines (dev-kmsg in the kernel's
Documentation/ABI/testing). PREFIX is facility << 3 | level. Lines of the kernel have facility 0;
lines of user space cannot have it, because devkmsg_write() replaces it.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Iterator

# One read returns one record; the kernel refuses a smaller buffer with EINVAL and, on some
# versions, drops the record.
_RECORD_BYTES = 8192
# Records waiting in memory for the parser: at most about 4 MiB, and only in a storm. Fewer at the
# start: the heap never shrinks below the most that was held at once.
STORM_BACKLOG = 30000
START_BACKLOG = 128
_HAND_OUT = 64


class Lost:
    """The records between `after` (last read) and `first` (next available) were overwritten."""

    __slots__ = ("after", "first")

    def __init__(self, after: int, first: int) -> None:
        self.after = after
        self.first = first


def decode(record: str) -> tuple[int, int, int, str]:
    """Record (text) -> (prefix, sequence, microseconds since boot, text).

    Raises ValueError for text that is not a kmsg record.
    """
    head, semicolon, rest = record.partition(";")
    fields = head.split(",", 3)
    if not semicolon or len(fields) < 3:
        raise ValueError("not a kmsg record")
    text = rest.partition("\n")[0]
    if "\\x" in text:
        text = unescape(text.encode("utf-8", "replace"))
    return int(fields[0]), int(fields[1]), int(fields[2]), text


def unescape(raw: bytes) -> str:
    r"""Undo the kernel's `\xNN` (everything not printable ASCII, and the backslash itself)."""
    first, *parts = raw.split(b"\\x")
    for part in parts:
        try:
            first += bytes((int(part[:2], 16),)) + part[2:]
        except ValueError:
            first += b"\\x" + part
    return first.decode("utf-8", "replace")


class KmsgReader:
    """Reads the kernel log from its oldest record. Never blocks; `fd` is for poll."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.read = os.read
        self.last = ""  # the last record read, unparsed
        self.first_seq: int | None = None  # oldest record when reading began
        self.backlog: list[str | Lost] = []  # read, but not yet yielded
        self.backlog_limit = START_BACKLOG
        self.drained = False

    def close(self) -> None:
        os.close(self.fd)

    def last_seq(self) -> int | None:
        """Return the sequence number of the last record read, or None."""
        return _sequence(self.last) if self.last else None

    def drain(self, limit: int = 10000) -> Iterator[str | Lost]:
        """Yield records that may matter, and `Lost`, until the end or `limit` of them.

        Sets `drained` to whether the end was reached. The ring may be small (128 KiB hold about
        1,300 records) and parsing is slower than writing, so the ring is emptied first, and again
        after every few records.
        """
        self.drained = False
        waiting = self.backlog
        while limit > 0:
            self.fetch()
            if not waiting:
                self.drained = True
                return
            batch = waiting[:_HAND_OUT]
            del waiting[:_HAND_OUT]
            limit -= len(batch)
            yield from batch

    def fetch(self) -> None:
        """Read to the end of the ring or until the backlog is full; keep what may matter.

        The two substring tests spare the parser: almost no kernel line is from the driver. They
        test text, because `in` on bytes takes five times as long (it first tries a number).
        """
        read, fd, waiting = self.read, self.fd, self.backlog
        overrun = False
        odd = not self.last  # the next record is the first, or the first after an overrun
        while len(waiting) < self.backlog_limit:
            try:
                record = read(fd, _RECORD_BYTES).decode("utf-8", "replace")
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
                seq = _sequence(record)
                if self.first_seq is None:
                    self.first_seq = seq
                elif overrun and self.last and seq > _sequence(self.last) + 1:
                    waiting.append(Lost(_sequence(self.last), seq))
                odd = overrun = False
            self.last = record
            if "NVRM: " in record or "nvidia-nvswitch" in record:
                waiting.append(record)


def _sequence(record: str) -> int:
    return int(record.split(",", 2)[1])
