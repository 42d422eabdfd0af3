"""Two kinds of folding. Both are exact: no event is lost and none is counted twice.

* `Details`: the kernel prints an SXid as up to three records with one code (the event, Severity,
  Data). They become one event.
* `Storm`: the first of many equal events passes at once; its repetitions within the window are
  counted in one line.

Events held back here are not in the log yet. `held_from` is the first of their sequence numbers;
lines of the log carry it as `safe`, where reading resumes after a crash.

Events are parsed fields with `seq`, `usec` (kernel microseconds), `injected` and `raw`. They are
classified only when they are written, which in a storm is one in a thousand.
"""

from __future__ import annotations

import time

from .parse import fixed_start, parse_message

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

# The lines of one SXid come back to back; this is for those that arrive in two reads.
DETAIL_WAIT_S = 0.05
# The number of different faults tracked at a time, which bounds the memory in a flood.
MAX_KEYS = 256
# The number of storms recognised by how their lines start: as many as a machine has GPUs.
_MAX_RUNNING = 16

_HEX = b"0123456789abcdefABCDEF"


class Details:
    """Holds an SXid until its Severity and Data records have arrived or are overdue."""

    def __init__(self) -> None:
        # (nvswitch, pci, sxid) -> (due, event), in the order in which they were read.
        self.held: dict[tuple[Any, ...], tuple[float, dict[str, Any]]] = {}

    def add(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Add an SXid event; returns the events that no longer wait."""
        key = (event["nvswitch"], event["pci"], event["sxid"])
        out = [self.held.pop(key)[1]] if key in self.held else []
        if len(self.held) >= MAX_KEYS:
            out.append(self.held.pop(next(iter(self.held)))[1])
        self.held[key] = (time.monotonic() + DETAIL_WAIT_S, event)
        return out

    def detail(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Add a Severity or Data record; returns the event when it is complete, else None."""
        key = (fields["nvswitch"], fields["pci"], fields["sxid"])
        if key not in self.held:
            return None
        event: dict[str, Any] = self.held[key][1]
        details = event.setdefault("detail", [])
        details.append(fields["message"])
        return self.held.pop(key)[1] if len(details) == 2 else None

    def due(self, now: float) -> list[dict[str, Any]]:
        """Events that have waited long enough, in read order."""
        out = []
        for key, (due, event) in list(self.held.items()):
            if due <= now:
                del self.held[key]
                out.append(event)
        return out

    def flush(self) -> list[dict[str, Any]]:
        return self.due(float("inf"))

    def next_due(self) -> float | None:
        return min((due for due, _ in self.held.values()), default=None)

    def held_from(self) -> int | None:
        return min((event["seq"] for _, event in self.held.values()), default=None)


class _Held:
    """What a window holds back: the number of events, and the newest of them."""

    __slots__ = ("count", "due", "ends", "first_seq", "last", "letters", "start")

    def __init__(self, event: dict[str, Any], ends: int, due: float) -> None:
        self.count = 1
        self.first_seq = event["seq"]
        self.last = event
        self.ends = ends  # kernel microseconds
        self.due = due  # time.monotonic()
        # A line that starts with `start` and has these letters is a repetition ("": parse it).
        self.start = fixed_start(event) or ""
        self.letters = letters(event["raw"])


class Storm:
    """Counts repetitions per window of kernel time. `window_s` 0 switches folding off."""

    def __init__(self, window_s: float) -> None:
        self.window_us = int(window_s * 1000000)
        # Key -> kernel microseconds at which its window ends, oldest first.
        self.ends: dict[tuple[Any, ...], int] = {}
        self.held: dict[tuple[Any, ...], _Held] = {}  # windows that hold events back
        self.running: list[_Held] = []  # those of `held` that have a `start`

    def add(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Add an event; returns the events to write now, in order."""
        if not self.window_us:
            return [event]
        key = storm_key(event)
        usec = event["usec"]
        ends = self.ends.get(key)
        out = []
        if ends is not None and usec >= ends and key in self.held:
            out.append(self._folded(key))
            ends = self.ends[key] = (
                ends + self.window_us
            )  # the storm may continue in the next window
        if ends is None or usec >= ends:  # first occurrence, or after a quiet window
            if ends is not None:
                del self.ends[key]  # so that it is inserted last
            elif len(self.ends) >= MAX_KEYS:
                self._forget_older_half(out)
            self.ends[key] = usec + self.window_us
            out.append(event)
            return out
        held = self.held.get(key)
        if held is None:
            self._hold(key, event, ends)
        else:
            held.count += 1
            held.last = event
        return out

    def repeats(self, seq: int | None, usec: int | None, text: str, injected: bool) -> bool:
        """True when the record repeats an event held back; it is then counted without parsing.

        Most records of a storm take this path, so its cost decides how many are overwritten.
        """
        for held in self.running:
            if text.startswith(held.start) and usec is not None and usec < held.ends:
                last = held.last
                if letters(text) == held.letters and injected == last["injected"]:
                    held.count += 1
                    last["seq"], last["usec"], last["raw"] = seq, usec, text
                    return True
        return False

    def due(self, now: float) -> list[dict[str, Any]]:
        """Folded events whose window has ended by time.monotonic()."""
        out = []
        for key, held in list(self.held.items()):
            if held.due <= now:
                out.append(self._folded(key))
                self.ends[key] = held.last["usec"] + self.window_us
        return out

    def flush(self) -> list[dict[str, Any]]:
        out = [self._folded(key) for key in list(self.held)]
        self.ends.clear()
        return out

    def _forget_older_half(self, out: list[dict[str, Any]]) -> None:
        """Removes many keys at a time: finding the oldest steps over every removed entry."""
        for key in list(self.ends)[: MAX_KEYS // 2]:
            if key in self.held:
                out.append(self._folded(key))
            del self.ends[key]

    def _hold(self, key: tuple[Any, ...], event: dict[str, Any], ends: int) -> None:
        due = time.monotonic() + self.window_us / 1000000.0
        held = self.held[key] = _Held(event, ends, due)
        if held.start and len(self.running) < _MAX_RUNNING:
            self.running.append(held)

    def _folded(self, key: tuple[Any, ...]) -> dict[str, Any]:
        held = self.held.pop(key)
        event: dict[str, Any] = held.last
        if held in self.running:
            self.running.remove(held)
            event["message"] = (parse_message(event["raw"]) or event)["message"]
        if held.count > 1:
            event["plain"] = False
            event["count"] = held.count
            event["first_seq"] = held.first_seq
        return event

    def next_due(self) -> float | None:
        return min((held.due for held in self.held.values()), default=None)

    def held_from(self) -> int | None:
        return min((held.first_seq for held in self.held.values()), default=None)


def letters(text: str) -> bytes:
    """The text without hex digits, so that addresses, channels and counts do not matter."""
    return text.encode("utf-8", "replace").translate(None, _HEX)


def storm_key(fields: dict[str, Any]) -> tuple[Any, ...]:
    """The key that equal events share: what happened, where, and the letters of the message.

    A line written from user space never equals one of the kernel.
    """
    get = fields.get
    key: tuple[Any, ...] = (
        fields["head"],
        fields["pid"],
        fields["process"],
        fields["injected"],
        letters(fields["message"]),
    )
    if get("plain"):
        return key
    # SXid and NVLink messages name the place in digits.
    return key + tuple(map(get, ("sxid", "link", "intrinfo", "error_status")))
