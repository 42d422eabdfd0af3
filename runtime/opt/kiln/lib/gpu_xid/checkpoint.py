"""Where to resume after a restart, a crash or a kill -9, without losing or repeating an event.

The event log is the checkpoint. Each line carries its boot id and sequence number, and `safe`
where that differs: every record up to `safe` is in the log. Later records may be in the log as
well (another event was held back for folding while this line was written), so the lines after
`safe` are read too, to recognise their events when the ring is read again.

A small position file repeats the position after each write. It is needed when the log was moved
away while the monitor was down, for `--format raw` (its lines carry no number), and as the lock
that keeps a second monitor off the same log.

Events from the journal have no number; their position is the journal's cursor.
"""

from __future__ import annotations

import fcntl
import json
import os

from . import fold
from .log import tail_lines
from .parse import parse_message

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

_TAIL = 64 << 10
_LONG_TAIL = 8 << 20
_SIZE = 512  # the position file is one padded line, written by one call


def _is_number(value: object) -> bool:
    """Whether a file may hold this as a number, a size or an inode; -1 for none."""
    return type(value) is int and -1 <= value < 1 << 62


class BusyError(Exception):
    """Another monitor holds this position file."""


class Position:
    """boot, seq (last record handled) and its usec, safe, and the size of the log at that point.

    For the journal, seq is None and cursor names the last entry handled.
    """

    __slots__ = ("boot", "cursor", "inode", "safe", "seq", "size", "usec")

    def __init__(
        self,
        boot: str,
        seq: int | None,
        usec: int | None,
        safe: int,
        inode: int = 0,
        size: int = 0,
        cursor: str | None = None,
    ) -> None:
        self.boot = boot
        self.cursor = cursor
        self.seq = seq
        self.usec = usec
        self.safe = safe
        self.inode = inode
        self.size = size


class PositionFile:
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

    def load(self) -> Position | None:
        try:
            row = json.loads(os.pread(self.fd, _SIZE, 0).decode())
            position = Position(**{key: row[key] for key in Position.__slots__})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        numbers = (position.safe, position.inode, position.size)
        optional = (n for n in (position.seq, position.usec) if n is not None)
        cursor = position.cursor is None or isinstance(position.cursor, str)
        valid = isinstance(position.boot, str) and cursor and all(map(_is_number, numbers))
        # -1 stands for "nothing yet".
        return position if valid and all(map(_is_number, optional)) else None

    def save(self, position: Position) -> bool:
        """False when the write failed; the log alone is then the checkpoint."""
        row = {key: getattr(position, key) for key in Position.__slots__}
        try:
            os.pwrite(self.fd, json.dumps(row).encode().ljust(_SIZE - 1) + b"\n", 0)
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Resume:
    """What the previous run recorded about its progress."""

    def __init__(self) -> None:
        # `stop`, `killed`, or None when there are no traces of an earlier run.
        self.ended: str | None = None
        # Candidates: one from the log, one from the position file.
        self.positions: list[Position] = []
        self.covered: list[dict[str, Any]] = []  # log lines after `safe`
        # Boot id -> journal cursor of the newest line.
        self.cursors: dict[str | None, str | None] = {}
        self.skip_lines = 0  # raw format: lines written after the position was saved

    def position(self, boot: str) -> Position | None:
        """The furthest position of that boot, or None."""
        of_boot = [p for p in self.positions if p.boot == boot]
        return max(of_boot, key=lambda p: p.safe) if of_boot else None

    def cursor(self, boot: str) -> str | None:
        """The journal cursor at which reading stopped in that boot, or None."""
        return self.cursors.get(boot)

    def covers(self, fields: dict[str, Any]) -> bool:
        """Whether this event (parsed, with `seq` and `injected`) is in the log, alone or folded."""
        seq = fields["seq"]
        for line in self.covered:
            if line.get("first_seq", line["seq"]) <= seq <= line["seq"]:
                logged = parse_message(line["raw"])
                if logged is None or logged["kind"] != fields["kind"]:
                    continue
                logged["injected"] = line.get("injected", False)
                if fields["kind"] == "gpu-lost" or fold.storm_key(logged) == fold.storm_key(fields):
                    return True
        return False


def recover(log_path: str, position_file: PositionFile, raw: bool) -> Resume:
    """Read the end of the log (removing a torn last line) and the position file."""
    resume = Resume()
    saved = position_file.load()
    if saved is not None:
        resume.ended = "killed"
        if saved.seq is not None:
            resume.positions.append(saved)
    lines = tail_lines(log_path, _TAIL, cut_torn_line=True)
    if raw:
        if saved is not None:
            resume.cursors[saved.boot] = saved.cursor
            resume.skip_lines = _lines_behind(log_path, saved)
        return resume
    for text in lines:
        row = _load(text)
        if isinstance(row.get("cursor"), str) and isinstance(row.get("boot_id"), str):
            resume.cursors.setdefault(row["boot_id"], row["cursor"])
    if saved is not None:
        resume.cursors.setdefault(saved.boot, saved.cursor)
    newest = next(filter(None, map(_position_of, lines)), None)
    if newest is not None:
        position, line = newest
        resume.ended = "stop" if line["event"] == "stop" else "killed"
        resume.positions.append(position)
    if not resume.positions:
        return resume
    last = resume.positions[-1]
    best = resume.position(last.boot) or last
    if best.safe < max(p.seq or 0 for p in resume.positions if p.boot == last.boot):
        lines = tail_lines(log_path, _LONG_TAIL) + _moved_away(log_path, saved)
    for text in lines:
        row = _load(text)
        is_event = row.get("boot_id") == last.boot and isinstance(row.get("raw"), str)
        numbers = (row.get("seq"), row.get("first_seq", 0))
        if is_event and all(map(_is_number, numbers)) and row["seq"] > best.safe:
            resume.covered.append(row)
    return resume


def _moved_away(log_path: str, saved: Position | None) -> list[bytes]:
    """Lines of the file that was the log when the position was saved, if it has been renamed."""
    folder, name = os.path.split(log_path)
    if saved is None:
        return []
    try:
        if os.stat(log_path).st_ino == saved.inode:
            return []
    except FileNotFoundError:
        pass
    try:
        others = [entry.path for entry in os.scandir(folder) if entry.inode() == saved.inode]
    except OSError:
        return []
    return [line for path in others if name in path for line in tail_lines(path, _LONG_TAIL)]


def logged_until(log_path: str) -> dict[str | None, int]:
    """Boot id -> microseconds since boot of its newest line in the log."""
    newest: dict[str | None, int] = {}
    for path in (log_path, log_path + ".0", log_path + ".1"):
        for text in tail_lines(path, _LONG_TAIL):
            row = _load(text)
            boot, usec = row.get("boot_id"), row.get("monotonic_us")
            if isinstance(usec, int) and _is_number(usec) and isinstance(boot, str):
                newest[boot] = max(usec, newest.get(boot, -1))
    return newest


def _load(text: bytes) -> dict[str, Any]:
    try:
        row = json.loads(text.decode())
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _position_of(text: bytes) -> tuple[Position, dict[str, Any]] | None:
    row = _load(text)
    seq, boot = row.get("seq"), row.get("boot_id")
    if not _is_number(seq) or not isinstance(boot, str) or "event" not in row:
        return None
    if row.get("previous_boot"):
        return None
    usec, safe = row.get("monotonic_us"), row.get("safe", seq)
    usec = usec if _is_number(usec) else None
    return Position(boot, seq, usec, safe if isinstance(safe, int) else -1), row


def _lines_behind(path: str, saved: Position) -> int:
    """The number of whole lines after the saved size, if the log is still the same file."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_ino != saved.inode:
                return 0
            file.seek(max(0, saved.size))
            return file.read(_LONG_TAIL).count(b"\n")
    except OSError:
        return 0
