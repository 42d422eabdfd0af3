"""Two kinds of folding, both exact: no event is lost by them and none is counted twice.

* `Details`: an SXid is printed as up to three records with one number (what happened,
  Severity, Data). They become one event.
* `Storm`: of one repeating event the first occurrence passes at once; what repeats within the
  window is counted into one line.

Whatever is held back here is not in the log yet. `held_from` says from which sequence number
on, and each line in the log repeats it as `safe`: after a crash reading starts again there.

Events are parsed fields with `seq`, `usec` (kernel microseconds), `injected` and `raw`. They are
classified only when they are written: in a storm that is one in a thousand.
"""

import time

from .parse import fixed_start, parse_message

# Kernel lines of one SXid come back to back; this is for one that straddles two reads.
DETAIL_WAIT_S = 0.05
# Different faults followed at the same time. A made-up flood cannot grow the table past this.
MAX_KEYS = 256
# Storms that are recognised by how their lines begin: as many as a machine has GPUs.
_MAX_RUNNING = 16

_HEX = b"0123456789abcdefABCDEF"


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


class _Held:
    """What a window holds back: how many events there were, and the newest of them."""

    __slots__ = ("count", "due", "ends", "first_seq", "last", "letters", "start")

    def __init__(self, event, ends, due):
        self.count = 1
        self.first_seq = event["seq"]
        self.last = event
        self.ends = ends  # kernel microseconds
        self.due = due  # time.monotonic()
        # A line that begins like this and has these letters is one more of them (or None).
        self.start = fixed_start(event)
        self.letters = letters(event["raw"])


class Storm:
    """Counts repetitions per window of kernel time. `window_s` 0 switches it off."""

    def __init__(self, window_s):
        self.window_us = int(window_s * 1000000)
        self.ends = {}  # key -> kernel microseconds at which its window ends, oldest first
        self.held = {}  # key -> _Held, for the windows that hold something back
        self.running = []  # those of `held` that have a `start`

    def add(self, event):
        """Take an event; returns those to write now, in order."""
        if not self.window_us:
            return [event]
        key = storm_key(event)
        usec = event["usec"]
        ends = self.ends.get(key)
        out = []
        if ends is not None and usec >= ends and key in self.held:
            out.append(self._folded(key))
            ends = self.ends[key] = ends + self.window_us  # it may go on in the next window
        if ends is None or usec >= ends:  # a first occurrence, or after a quiet window again
            if ends is not None:
                del self.ends[key]  # to stand last again
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

    def repeats(self, seq, usec, text, injected):
        """Count a record that only repeats one that is held back, if it does: no need to parse it.

        This is what a storm consists of, so it decides how much of the ring is lost to one.
        """
        for held in self.running:
            if text.startswith(held.start) and usec < held.ends:
                last = held.last
                if letters(text) == held.letters and injected == last["injected"]:
                    held.count += 1
                    last["seq"], last["usec"], last["raw"] = seq, usec, text
                    return True
        return False

    def due(self, now):
        """Folded events whose window has ended by the clock on the wall."""
        out = []
        for key, held in list(self.held.items()):
            if held.due <= now:
                out.append(self._folded(key))
                self.ends[key] = held.last["usec"] + self.window_us
        return out

    def flush(self):
        out = [self._folded(key) for key in list(self.held)]
        self.ends.clear()
        return out

    def _forget_older_half(self, out):
        """Many at once: to find the oldest of a dict is to step over all that were removed."""
        for key in list(self.ends)[: MAX_KEYS // 2]:
            if key in self.held:
                out.append(self._folded(key))
            del self.ends[key]

    def _hold(self, key, event, ends):
        due = time.monotonic() + self.window_us / 1000000.0
        held = self.held[key] = _Held(event, ends, due)
        if held.start and len(self.running) < _MAX_RUNNING:
            self.running.append(held)

    def _folded(self, key):
        held = self.held.pop(key)
        event = held.last
        if held in self.running:
            self.running.remove(held)
            event["message"] = parse_message(event["raw"])["message"]
        if held.count > 1:
            event["plain"] = False
            event["count"] = held.count
            event["first_seq"] = held.first_seq
        return event

    def next_due(self):
        return min((held.due for held in self.held.values()), default=None)

    def held_from(self):
        return min((held.first_seq for held in self.held.values()), default=None)


def letters(text):
    """The text without hex digits: a changing address, channel or count makes no difference."""
    return text.encode("utf-8", "replace").translate(None, _HEX)


def storm_key(fields):
    """What makes two events "the same repeating": all that says what and where, and its letters.

    A line that somebody wrote from user space never counts as one of the kernel's.
    """
    get = fields.get
    key = (
        fields["head"],
        fields["pid"],
        fields["process"],
        fields["injected"],
        letters(fields["message"]),
    )
    if get("plain"):
        return key
    # Where the message itself says where: SXid and NVLink.
    return key + tuple(map(get, ("sxid", "link", "intrinfo", "error_status")))
