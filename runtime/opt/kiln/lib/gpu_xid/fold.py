"""Two kinds of folding, both exact: no event is lost by them and none is counted twice.

* `Details`: an SXid is printed as up to three records with one number (what happened,
  Severity, Data). They become one event.
* `Storm`: of one repeating event the first occurrence passes at once; what repeats within the
  window is counted into one line.

Whatever is held back here is not in the log yet. `held_from` says from which sequence number
on, and each line in the log repeats it as `safe`: after a crash reading starts again there.

Events are parsed fields with `seq`, `usec` (kernel microseconds) and `raw`. They are classified
only when they are written: in a storm that is one in a thousand.
"""

import time

# Kernel lines of one SXid come back to back; this is for one that straddles two reads.
DETAIL_WAIT_S = 0.05
# Different faults followed at the same time. A made-up flood cannot grow the table past this.
MAX_KEYS = 512

_NOT_LETTERS = {ord(c): None for c in "0123456789abcdefABCDEF"}


class Details:
    """Holds an SXid until its Severity and Data records are there or will not come."""

    def __init__(self):
        self.held = {}  # (nvswitch, pci, sxid) -> (due, event); insertion order is read order

    def add(self, event):
        """Take an SXid event; returns the events this pushes out."""
        key = (event["nvswitch"], event["pci"], event["sxid"])
        out = [self.held.pop(key)[1]] if key in self.held else []
        if len(self.held) >= MAX_KEYS:
            out.append(self.held.pop(next(iter(self.held)))[1])
        self.held[key] = (time.monotonic() + DETAIL_WAIT_S, event)
        return out

    def detail(self, fields):
        """Take a Severity or Data record; returns the event when it is whole, else None."""
        key = (fields["nvswitch"], fields["pci"], fields["sxid"])
        if key not in self.held:
            return None
        event = self.held[key][1]
        details = event.setdefault("detail", [])
        details.append(fields["message"])
        return self.held.pop(key)[1] if len(details) == 2 else None

    def due(self, now):
        """Events that have waited long enough, in read order."""
        out = []
        for key, (due, event) in list(self.held.items()):
            if due <= now:
                del self.held[key]
                out.append(event)
        return out

    def flush(self):
        return self.due(float("inf"))

    def next_due(self):
        return min((due for due, _ in self.held.values()), default=None)

    def held_from(self):
        return min((event["seq"] for _, event in self.held.values()), default=None)


class _Window:
    __slots__ = ("count", "due", "ends", "first_seq", "last")

    def __init__(self, ends):
        self.ends = ends  # kernel microseconds
        self.last = None  # the newest event that was held back
        self.count = 0
        self.first_seq = None
        self.due = None


class Storm:
    """Counts repetitions per window of kernel time. `window_s` 0 switches it off."""

    def __init__(self, window_s):
        self.window_us = int(window_s * 1000000)
        self.windows = {}
        self.holding = 0  # windows that hold something back

    def add(self, event):
        """Take an event; returns those to write now, in order."""
        if not self.window_us:
            return [event]
        key = storm_key(event)
        window = self.windows.get(key)
        out = []
        if window is not None and event["usec"] >= window.ends:
            if window.count:
                out.append(self._folded(window))
                window = _Window(window.ends + self.window_us)
                if event["usec"] >= window.ends:
                    window = None  # quiet for a whole window: a first occurrence again
                else:
                    self.windows[key] = window
            else:
                window = None
        if window is None:
            self.windows.pop(key, None)
            if len(self.windows) >= MAX_KEYS:
                oldest = self.windows.pop(next(iter(self.windows)))
                if oldest.count:
                    out.append(self._folded(oldest))
            self.windows[key] = _Window(event["usec"] + self.window_us)
            out.append(event)
            return out
        if not window.count:
            self.holding += 1
            window.first_seq = event["seq"]
            window.due = time.monotonic() + self.window_us / 1000000.0
        window.count += 1
        window.last = event
        return out

    def due(self, now):
        """Folded events whose window has ended by the clock on the wall."""
        out = []
        for key, window in list(self.windows.items()) if self.holding else ():
            if window.count and window.due <= now:
                out.append(self._folded(window))
                self.windows[key] = _Window(window.last["usec"] + self.window_us)
        return out

    def flush(self):
        out = [self._folded(window) for window in self.windows.values() if window.count]
        self.windows.clear()
        return out

    def _folded(self, window):
        self.holding -= 1
        event = window.last
        if window.count > 1:
            event["count"] = window.count
            event["first_seq"] = window.first_seq
        return event

    def next_due(self):
        if not self.holding:
            return None
        return min((w.due for w in self.windows.values() if w.count), default=None)

    def held_from(self):
        if not self.holding:
            return None
        return min((w.first_seq for w in self.windows.values() if w.count), default=None)


def storm_key(fields):
    """What makes two events "the same repeating": all that says what and where.

    Of the text only the letters count, so a changing address or channel is no difference.
    """
    get = fields.get
    return (
        get("xid"),
        get("sxid"),
        fields["pci"],
        get("gpu_instance"),
        get("compute_instance"),
        fields["pid"],
        fields["process"],
        get("link"),
        get("intrinfo"),
        get("error_status"),
        fields["raw"].translate(_NOT_LETTERS),
    )
