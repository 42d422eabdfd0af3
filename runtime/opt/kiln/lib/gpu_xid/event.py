"""From parsed fields to the line in the event log. The order of the keys is part of the format:
the time stands first, where the CloudWatch agent's timestamp_format finds it."""

import time

from . import lean

_second = [None, ""]


def timestamp(seconds):
    """UNIX seconds (float) -> `2026-11-21T01:02:03.456789Z` (agent: %Y-%m-%dT%H:%M:%S.%f, UTC)."""
    unix_us = round(seconds * 1000000)
    return "%s.%06dZ" % (_to_the_second(unix_us), unix_us % 1000000)


def _to_the_second(unix_us):
    whole = unix_us // 1000000  # floors, also before 1970
    if whole != _second[0]:
        t = time.gmtime(whole)
        _second[1] = "%04d-%02d-%02dT%02d:%02d:%02d" % t[:6]
        _second[0] = whole
    return _second[1]


class Clock:
    """Wall-clock time of kernel timestamps.

    From the clocks as they stand when the event is read, so a changed clock corrects what
    follows. They are asked again for each event that is newer than the last look at them, or
    after `forget`. The kernel's log clock may drift from CLOCK_MONOTONIC over weeks; an event
    never lies in the future for that.
    """

    def __init__(self):
        self.forget()

    def forget(self):
        """Look again at the next event."""
        self.unix_us = self.monotonic_us = -1

    def time_of(self, usec):
        """UNIX microseconds of a kernel timestamp (microseconds since boot; None is now)."""
        if usec is None or usec > self.monotonic_us:
            self.unix_us = round(time.time() * 1000000)
            self.monotonic_us = round(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000000)
            if usec is None or usec > self.monotonic_us:
                return self.unix_us
        return self.unix_us - self.monotonic_us + usec


# Present in each Xid and SXid line, null when unknown, in this order.
_COMMON = ("xid", "sxid", "name", "severity", "action", "pci", "gpu", "uuid", "pid", "process")
# Present where the line or the situation has them.
_OPTIONAL = (
    "action_nvidia",
    "gpu_instance",
    "compute_instance",
    "caused_by_xid",
    "nvswitch",
    "link",
    "unit",
    "word",
    "resolution",
    "investigate",
    "effect",
    "recovery",
    "detail",
    "driver",
    "injected",
    "catchup",
    "previous_boot",
    "cursor",
    "implied_xid",
    "count",
    "first_seq",
)
_PLACE = {key: place for place, key in enumerate(_OPTIONAL)}
_OPTIONAL_SET = frozenset(_OPTIONAL)


def record(event, when, boot, seq, usec, **more):
    """The common head of every line, then `more`."""
    line = {"time": timestamp(when), "event": event, "boot_id": boot, "seq": seq}
    line["monotonic_us"] = usec
    line.update(more)
    return line


def gpu_event(fields, when, boot, seq, usec):
    """Dict of an Xid or SXid event in the order in which it is written."""
    line = record(fields["kind"], when, boot, seq, usec)
    line.update(zip(_COMMON, map(fields.get, _COMMON)))  # noqa: B905
    for key in sorted(_OPTIONAL_SET.intersection(fields), key=_PLACE.__getitem__):
        value = fields[key]
        if value is not None and value is not False:
            line[key] = value
    line["raw"] = fields["raw"]
    return line


# What differs from one event to the next of the same code on the same GPU, in the line's order.
_VARIES = ("time", "seq", "monotonic_us", "pid", "process", "raw")
_HOLE = "\0"


def template(line):
    """The line of an event like this one as the texts before, between and behind `_VARIES`."""
    text = lean.dumps(dict(line, **dict.fromkeys(_VARIES, _HOLE))) + "\n"
    return text.split(lean.quote(_HOLE))


def fill(template, fields, unix_us):
    """What `encode(gpu_event(…))` gives, for fields to which that template applies.

    Building and encoding the dict anew for each event is half of what an event costs. Joined,
    as `%` looks at each character of the template again.
    """
    to_time, to_seq, to_usec, to_pid, to_process, to_raw, end = template
    pid, process = fields["pid"], fields["process"]
    return "".join(
        (
            to_time,
            '"%s.%06dZ"' % (_to_the_second(unix_us), unix_us % 1000000),
            to_seq,
            str(fields["seq"]),
            to_usec,
            str(fields["usec"]),
            to_pid,
            "null" if pid is None else str(pid),
            to_process,
            "null" if process is None else lean.quote(process),
            to_raw,
            lean.quote(fields["raw"]),
            end,
        )
    ).encode("ascii")


def encode(line):
    """One JSON object and its newline, as bytes. ASCII only, so no reader can split it wrongly."""
    return lean.dumps(line).encode("ascii") + b"\n"


def raw_line(usec, text):
    """The kernel line as dmesg and /var/log/dmesg show it: what the original parser wrote."""
    head = "[%5d.%06d] %s\n" % (usec // 1000000, usec % 1000000, text.replace("\n", "\\n"))
    return head.encode("utf-8", "replace")
