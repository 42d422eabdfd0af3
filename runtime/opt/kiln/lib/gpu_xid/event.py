"""Parsed fields to lines of the event log.

The order of the keys is part of the format: the time comes first, where the CloudWatch agent's
timestamp_format expects it.
"""

from __future__ import annotations

import json
import time

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

# A value as the shortest JSON of ASCII characters only.
to_json = json.JSONEncoder(separators=(",", ":")).encode

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
    "implied_xid",
    "count",
    "first_seq",
    "instance_id",
    "image_id",
    "instance_type",
)


def timestamp(seconds: float) -> str:
    """UNIX seconds (float) -> `2026-11-21T01:02:03.456789Z` (agent: %Y-%m-%dT%H:%M:%S.%f, UTC)."""
    unix_us = round(seconds * 1000000)
    second, micro = divmod(unix_us, 1000000)
    return "{:04d}-{:02d}-{:02d}T{:02d}:{:02d}:{:02d}.{:06d}Z".format(
        *time.gmtime(second)[:6], micro
    )


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

    def seconds(self, usec: int) -> float:
        """Return the UNIX seconds of a kernel timestamp (microseconds since boot)."""
        if usec > self.monotonic_us:
            self.unix_us = round(time.time() * 1000000)
            self.monotonic_us = round(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000000)
        return (self.unix_us - max(self.monotonic_us - usec, 0)) / 1000000.0


def record(
    event: str, when: float, boot: str | None, seq: int | None, usec: int | None, **more: Any
) -> dict[str, Any]:
    """Return the keys that every line starts with, then `more`."""
    line = {"time": timestamp(when), "event": event, "boot_id": boot, "seq": seq}
    line["monotonic_us"] = usec
    line.update(more)
    return line


def gpu_event(
    fields: dict[str, Any], when: float, boot: str | None, seq: int | None, usec: int | None
) -> dict[str, Any]:
    """Return an Xid or SXid event as a dict, in the order in which it is written."""
    line = record(fields["kind"], when, boot, seq, usec)
    line.update(zip(_COMMON, map(fields.get, _COMMON)))
    for key in _OPTIONAL:
        value = fields.get(key)
        if value is not None and value is not False:
            line[key] = value
    line["raw"] = fields["raw"]
    return line


def encode(line: dict[str, Any]) -> bytes:
    """One JSON object and a newline. ASCII only, so that every reader splits lines alike."""
    return to_json(line).encode("ascii") + b"\n"
