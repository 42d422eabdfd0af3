"""Files as they grow: lines become events, and what was sent is remembered across restarts.

github:aws/amazon-cloudwatch-agent plugins/inputs/logfile/{logfile,tailersrc,fileconfig}.go
@ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import glob
import os

from .timestamps import Clock

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Optional, Tuple

    from .plan import Source

    Event = Tuple[Optional[float], str]

# An event may go on in the next line: the last one is taken as whole after so many seconds
# (multilineWaitPeriod, five times).
WAIT = 5.0
_COMPRESSED = (".tar", ".zst", ".gz", ".zip", ".bz2", ".rar")


class Tail:
    """The newest file of a pattern, read from where the last run stopped."""

    def __init__(self, source: Source, state_folder: str) -> None:
        self.source, self.state_folder = source, state_folder
        self.clock = Clock(source.time_format, source.utc) if source.time_format else None
        self.path: str | None = None
        self.offset = self.inode = 0
        self.rest = b""
        self.lines: list[str] = []
        self.since = 0.0

    def events(self, now: float) -> list[Event]:
        """Complete events since the last call: (seconds or None, text)."""
        read_events: list[Event] = []
        for line in self._new_lines():
            if self.lines and self._starts(line):
                read_events += self._event()
            if line or self.lines:
                self.lines.append(line)
                self.since = now
        if self.lines and now - self.since >= WAIT:
            read_events += self._event()
        return read_events

    def keep(self) -> None:
        """Write where reading stopped: after the last event, in the agent's form."""
        if self.path is None:
            return
        pending = sum(len(line.encode("utf-8", "surrogateescape")) + 1 for line in self.lines)
        os.makedirs(self.state_folder, exist_ok=True)
        name = self.path.replace("/", "_").replace(" ", "_").replace(":", "_")
        with open(os.path.join(self.state_folder, name), "w") as stream:
            stream.write(f"{self.offset - len(self.rest) - pending}\n{self.path}")

    def _new_lines(self) -> list[str]:
        path = newest(self.source.path)
        if path is None:
            return []
        try:
            stat = os.stat(path)
            if path != self.path or stat.st_ino != self.inode:
                first = self.path is None
                self.path, self.inode, self.rest = path, stat.st_ino, b""
                self.offset = self._begin(path, stat.st_size) if first else 0
            if stat.st_size < self.offset:
                self.offset, self.rest = 0, b""  # cut: read it anew
            with open(path, "rb") as stream:
                stream.seek(self.offset)
                read = stream.read()
        except OSError:
            return []
        self.offset += len(read)
        *whole, self.rest = (self.rest + read).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def _begin(self, path: str, size: int) -> int:
        name = path.replace("/", "_").replace(" ", "_").replace(":", "_")
        try:
            with open(os.path.join(self.state_folder, name)) as stream:
                return int(stream.readline())
        except (OSError, ValueError):
            return 0 if self.source.from_beginning else size

    def _starts(self, line: str) -> bool:
        if self.source.starts_with_time:
            return self.clock is not None and self.clock.pattern.search(line) is not None
        return bool(self.source.start and self.source.start.search(line))

    def _event(self) -> list[Event]:
        text, self.lines = "\n".join(self.lines), []
        if not text:
            return []
        seconds = None
        if self.clock:
            seconds, span = self.clock.read(text)
            if span and self.source.trims:
                text = (text[: span[0]] + text[span[1] :]).lstrip(" \t\n\r")
        kept = all(includes == bool(e.search(text)) for includes, e in self.source.filters)
        return [(seconds, text)] if kept else []


def newest(pattern: str) -> str | None:
    """The newest file that a pattern matches; compressed ones and folders do not count."""
    candidates = [
        path
        for path in glob.glob(pattern, recursive=True)
        if os.path.isfile(path) and not path.endswith(_COMPRESSED)
    ]
    return max(candidates, key=os.path.getmtime) if candidates else None
