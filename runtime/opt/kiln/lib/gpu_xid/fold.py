"""Repeats of one fault: the first event passes at once, the others of its window are counted."""

from __future__ import annotations

import time

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

# The number of different faults tracked at a time, which bounds the memory in a flood.
_MAX_FAULTS = 256
_HEX = b"0123456789abcdefABCDEF"


class _Window:
    __slots__ = ("count", "due", "ends", "first_seq", "last")

    def __init__(self, ends: int, due: float) -> None:
        self.ends = ends  # kernel microseconds
        self.due = due  # time.monotonic()
        self.count = 0
        self.first_seq: int | None = None
        self.last: dict[str, Any] = {}


class Fold:
    """Counts the repeats of each fault per window of kernel time; `window_s` 0 switches it off.

    Events are parsed fields with `seq` and `usec`. Only a count waits here, never a first event.
    """

    def __init__(self, window_s: float) -> None:
        self.window_us = int(window_s * 1000000)
        self._windows: dict[tuple[Any, ...], _Window] = {}

    def add(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Add an event; returns the events to write now, in order."""
        key = fault(event)
        window = self._windows.get(key)
        if window is not None and event["usec"] < window.ends:
            window.count += 1
            window.last = event
            if window.first_seq is None:
                window.first_seq = event["seq"]
            return []
        out = self._close(key)
        if len(self._windows) >= _MAX_FAULTS:
            out += self.flush()
        if self.window_us:
            due = time.monotonic() + self.window_us / 1000000.0
            self._windows[key] = _Window(event["usec"] + self.window_us, due)
        return [*out, event]

    def due(self, now: float) -> list[dict[str, Any]]:
        """Close the windows that have ended by time.monotonic() `now`; returns their counts."""
        ended = [key for key, window in self._windows.items() if window.due <= now]
        return [event for key in ended for event in self._close(key)]

    def flush(self) -> list[dict[str, Any]]:
        """Close every window; returns their counts."""
        return [event for key in list(self._windows) for event in self._close(key)]

    def next_due(self) -> float | None:
        """time.monotonic() at which a count has to be written, or None."""
        return min((w.due for w in self._windows.values() if w.count), default=None)

    def _close(self, key: tuple[Any, ...]) -> list[dict[str, Any]]:
        window = self._windows.pop(key, None)
        if window is None or not window.count:
            return []
        return [dict(window.last, count=window.count, first_seq=window.first_seq)]


def fault(fields: dict[str, Any]) -> tuple[Any, ...]:
    """Return what equal events share: code, place, process, and the message without its numbers.

    A line written from user space never equals one of the kernel. SXid and NVLink messages name
    the place in digits.
    """
    letters = fields["message"].encode("utf-8", "replace").translate(None, _HEX)
    keys = ("head", "pid", "process", "injected", "link", "intrinfo", "error_status")
    return (letters, *map(fields.get, keys))
