"""Files as they grow: lines become events, and what was sent is remembered across restarts.

github:aws/amazon-cloudwatch-agent plugins/inputs/logfile/{logfile,tailersrc,fileconfig}.go and
internal/util/timestamp/timestamp.go @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import calendar
import datetime
import os
import re
import time

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Optional, Tuple

    from .plan import Source

    Event = Tuple[Optional[float], str]

# An event may go on in the next line: the last one is taken as whole after so many seconds
# (multilineWaitPeriod, five times).
WAIT = 5.0
_CODES = {"%Y": r"\d{4}", "%m": r"\d{1,2}", "%d": r"\d{1,2}", "%f": r"\d{1,6}", "%b": r"\w{3}"}


def seconds_of(line: str, layout: str, utc: bool) -> float | None:
    """Seconds since 1970 of the first time in this form; None when the line has no time."""
    pattern = re.sub(r"%\w", lambda code: _CODES.get(code[0], r"\d{2}"), re.escape(layout))
    match = re.search(pattern, line)
    try:
        parsed = datetime.datetime.strptime(match[0], layout) if match else None
    except ValueError:
        parsed = None
    if parsed is None:
        return None
    whole = calendar.timegm(parsed.timetuple()) if utc else time.mktime(parsed.timetuple())
    return whole + parsed.microsecond / 1e6


class Tail:
    """A file, read from where the last run stopped."""

    def __init__(self, source: Source, state_folder: str) -> None:
        self.source = source
        name = source.path.replace("/", "_").replace(" ", "_").replace(":", "_")
        self.state = os.path.join(state_folder, name)
        self.offset = self.inode = 0
        self.rest = b""
        self.lines: list[str] = []
        self.since = 0.0

    def events(self, now: float) -> list[Event]:
        """Complete events since the last call: (seconds or None, text)."""
        read_events: list[Event] = []
        for line in self._new_lines():
            if self.lines and line[:1].strip():  # does not go on
                read_events.append(self._event())
            if line or self.lines:
                self.lines.append(line)
                self.since = now
        if self.lines and now - self.since >= WAIT:
            read_events.append(self._event())
        return read_events

    def keep(self) -> None:
        """Write where reading stopped: after the last event, in the agent's form."""
        pending = sum(len(line.encode("utf-8", "surrogateescape")) + 1 for line in self.lines)
        os.makedirs(os.path.dirname(self.state), exist_ok=True)
        with open(self.state, "w") as stream:
            stream.write(f"{self.offset - len(self.rest) - pending}\n{self.source.path}")

    def _new_lines(self) -> list[str]:
        try:
            with open(self.source.path, "rb") as stream:
                stat = os.fstat(stream.fileno())
                if stat.st_ino != self.inode:
                    self.offset = 0 if self.inode else self._begin()
                    self.inode, self.rest = stat.st_ino, b""
                if stat.st_size < self.offset:
                    self.offset, self.rest = 0, b""  # cut: read it anew
                stream.seek(self.offset)
                read = stream.read()
        except OSError:
            return []
        self.offset += len(read)
        *whole, self.rest = (self.rest + read).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def _begin(self) -> int:
        try:
            with open(self.state) as stream:
                return int(stream.readline())
        except (OSError, ValueError):
            return 0

    def _event(self) -> Event:
        text, self.lines = "\n".join(self.lines), []
        layout = self.source.time_format
        return seconds_of(text, layout, self.source.utc) if layout else None, text
