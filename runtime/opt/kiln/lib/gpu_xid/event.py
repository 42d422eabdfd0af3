"""Parsed fields to lines of the event log. The order of the keys is part of the format: the time
comes first, where the CloudWatch agent's timestamp_format expects it."""

from __future__ import annotations

import json
import time

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

# A value as the shortest JSON of ASCII characters only.
to_json = json.JSONEncoder(separators=(",", ":")).encode

# The last second that was formatted, and its text: many events share a second.
_second: list[Any] = [None, ""]


def timestamp(seconds: float) -> str:
    """UNIX seconds (float) -> `2026-11-21T01:02:03.456789Z` (agent: %Y-%m-%dT%H:%M:%S.%f, UTC)."""
    unix_us = round(seconds * 1000000)
    return f"{_to_the_second(unix_us)}.{unix_us % 1000000:06d}Z"


def _to_the_second(unix_us: int) -> str:
    whole = unix_us // 1000000  # floors, also before 1970
    if whole != _second[0]:
        t = time.gmtime(whole)
        _second[1] = "{:04d}-{:02d}-{:02d}T{:02d}:{:02d}:{:02d}".format(*t[:6])
        _second[0] = whole
    return str(_second[1])


class Clock:
    """Converts kernel timestamps to wall-clock time.

    The two clocks are read when an event is newer than the last reading and after `forget`, so a
    corrected clock corrects later events. The clock of the kernel log may drift from
    CLOCK_MONOTONIC over weeks; an event is still never dated in the future.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Read the clocks again at the next event."""
        self.unix_us = self.monotonic_us = -1

    def time_of(self, usec: int | None) -> int:
        """UNIX microseconds of a kernel timestamp (microseconds since boot; None means now)."""
        if usec is None or usec > self.monotonic_us:
            self.unix_us = round(time.time() * 1000000)
            self.monotonic_us = round(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000000)
            if usec is None or usec > self.monotonic_us:
                return self.unix_us
        return self.unix_us - self.monotonic_us + usec


# Keys of each Xid and SXid line, null when unknown, in this order.
_COMMON = ("xid", "sxid", "name", "severity", "action", "pci", "gpu", "uuid", "pid", "process")
# Keys that a line has only where they apply.
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
    "instance_id",
    "image_id",
    "instance_type",
)
_PLACE = {key: place for place, key in enumerate(_OPTIONAL)}
_OPTIONAL_SET = frozenset(_OPTIONAL)


def record(
    event: str, when: float, boot: str | None, seq: int | None, usec: int | None, **more: Any
) -> dict[str, Any]:
    """The keys that every line starts with, then `more`."""
    line = {"time": timestamp(when), "event": event, "boot_id": boot, "seq": seq}
    line["monotonic_us"] = usec
    line.update(more)
    return line


def gpu_event(
    fields: dict[str, Any], when: float, boot: str | None, seq: int | None, usec: int | None
) -> dict[str, Any]:
    """An Xid or SXid event as a dict, in the order in which it is written."""
    line = record(fields["kind"], when, boot, seq, usec)
    line.update(zip(_COMMON, map(fields.get, _COMMON)))
    for key in sorted(_OPTIONAL_SET.intersection(fields), key=_PLACE.__getitem__):
        value = fields[key]
        if value is not None and value is not False:
            line[key] = value
    line["raw"] = fields["raw"]
    return line


# Keys whose values differ between events of the same code on the same GPU, in the line's order.
_VARIES = ("time", "seq", "monotonic_us", "pid", "process", "raw")
_HOLE = "\0"


def template(line: dict[str, Any]) -> list[str]:
    """The texts before, between and after the values of `_VARIES` in the line of such an event."""
    text = to_json(dict(line, **dict.fromkeys(_VARIES, _HOLE))) + "\n"
    return text.split(to_json(_HOLE))


def fill(template: list[str], fields: dict[str, Any], unix_us: int) -> bytes:
    """The same bytes as `encode(gpu_event(…))`, for fields to which the template applies.

    Building and encoding a dict would be half of the CPU time of an event.
    """
    to_time, to_seq, to_usec, to_pid, to_process, to_raw, end = template
    pid, process = fields["pid"], fields["process"]
    return "".join(
        (
            to_time,
            f'"{_to_the_second(unix_us)}.{unix_us % 1000000:06d}Z"',
            to_seq,
            str(fields["seq"]),
            to_usec,
            str(fields["usec"]),
            to_pid,
            "null" if pid is None else str(pid),
            to_process,
            "null" if process is None else to_json(process),
            to_raw,
            to_json(fields["raw"]),
            end,
        )
    ).encode("ascii")


def encode(line: dict[str, Any]) -> bytes:
    """One JSON object and a newline. ASCII only, so that every reader splits lines alike."""
    return to_json(line).encode("ascii") + b"\n"


def raw_line(usec: int, text: str) -> bytes:
    """The kernel line as dmesg shows it, which is what the original parser wrote."""
    head = "[{:5}.{:06d}] {}\n".format(usec // 1000000, usec % 1000000, text.replace("\n", "\\n"))
    return head.encode("utf-8", "replace")
