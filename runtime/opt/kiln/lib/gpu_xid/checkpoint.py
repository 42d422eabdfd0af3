"""Place to go on from after a restart or a kill -9: the boot id and sequence number of what was
read.

The event log is the checkpoint: each line carries both, and lines are written in the order of the
kernel. A small position file repeats the newest number, for a log that was moved away meanwhile,
and is the lock that keeps a second monitor off the same log.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

_TAIL = 64 << 10
_SIZE = 128  # the position file is one padded line, written by one call


class BusyError(Exception):
    """Another monitor holds this position file."""


class PositionFile:
    """The last record of a boot that was handled, and the lock of its monitor."""

    def __init__(self, path: str) -> None:
        """Raises BusyError. If the file cannot be created, `fd` is -1 and nothing is saved."""
        self.fd = -1
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.fd)
            raise BusyError(path) from None
        except OSError:
            pass

    def load(self) -> dict[str, Any]:
        """Return `boot_id` and `seq`, or {}."""
        try:
            return _row(os.pread(self.fd, _SIZE, 0))
        except OSError:
            return {}

    def save(self, boot: str, seq: int) -> None:
        """Write the position; where that fails, the log alone is the checkpoint."""
        text = json.dumps({"boot_id": boot, "seq": seq}).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self.fd, text.ljust(_SIZE - 1) + b"\n", 0)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def recover(log: str, saved: dict[str, Any], boot: str) -> tuple[int, str | None]:
    """Return (last record of this boot that was handled or -1, how the last run ended).

    An incomplete last line of the log is removed: its record is read again. The last run ended
    with `stop` or `killed`; None where nothing of one is left.
    """
    rows = [saved, *map(_row, tail_lines(log, cut_torn_line=True) or tail_lines(log + ".1"))]
    rows = [row for row in rows if row]
    last = max((row["seq"] for row in rows if row["boot_id"] == boot), default=-1)
    if not rows:
        return last, None
    return last, "stop" if rows[-1].get("event") == "stop" else "killed"


def _row(text: bytes) -> dict[str, Any]:
    """A line with a boot id and a sequence number; {} for any other."""
    try:
        row = json.loads(text.decode())
    except (ValueError, RecursionError):
        return {}
    valid = (
        isinstance(row, dict)
        and isinstance(row.get("boot_id"), str)
        and type(row.get("seq")) is int
        and 0 <= row["seq"] < 1 << 62
    )
    return row if valid else {}


def tail_lines(path: str, cut_torn_line: bool = False) -> list[bytes]:
    """Return the whole lines at the end of a file, oldest first; [] when it cannot be read."""
    try:
        fd = os.open(path, (os.O_RDWR if cut_torn_line else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - _TAIL)
        data = os.pread(fd, size - start, start)
        whole = data.rfind(b"\n") + 1
        if cut_torn_line and whole < len(data):
            os.ftruncate(fd, start + whole)
        lines = data[:whole].splitlines(True)
        return lines[1:] if start else lines
    except OSError:
        return []
    finally:
        os.close(fd)
