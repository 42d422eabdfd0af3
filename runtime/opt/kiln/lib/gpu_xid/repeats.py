"""The same fatal event on the same GPU after restart upon restart: another one will not help.

A restart is a new boot of the kernel (`boot_id`). A stop and start usually gives the instance
another GPU, with another UUID, whose events are counted anew.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable
from typing import Any, Tuple

from . import history, host

Key = Tuple[str, int, str]  # evaluated, so not tuple[…]: Python 3.7


class Repeats:
    """Counts boots by kind, code and GPU. `conf`: the section `restarts` of the configuration."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self.conf = conf
        self.boots: dict[Key, dict[str, float]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Take an event into account; what is not a fatal Xid or SXid of the kernel, or a GPU that
        was lost without one, is left out."""
        key = _key(row)
        if key is not None:
            boots = self.boots.setdefault(key, {})
            boots[row["boot_id"]] = max(_seconds(row["time"]), boots.get(row["boot_id"], 0))

    def restarts(self, key: Key) -> int:
        """After how many restarts of the window the event was there again, up to the newest one."""
        times = self.boots.get(key, {}).values()
        since = max(times, default=0) - self.conf["window_h"] * 3600
        return max(sum(1 for seconds in times if seconds >= since) - 1, 0)

    def replace(self, key: Key) -> bool:
        """Whether the instance should be replaced instead of restarted once more."""
        return self.restarts(key) >= int(self.conf["replace_after"])

    def advice(self) -> list[dict[str, Any]]:
        """The events for which a replacement is recommended."""
        return [
            {"kind": key[0], "code": key[1], "gpu": key[2], "restarts": self.restarts(key)}
            for key in sorted(self.boots)
            if self.replace(key)
        ]

    def environment(self, row: dict[str, Any]) -> dict[str, str]:
        """What a hook gets in its environment for an event, which may not be in the log yet."""
        self.add(row)
        key = _key(row)
        count = 0 if key is None else self.restarts(key)
        replace = key is not None and self.replace(key)
        return {"GPU_XID_RESTARTS": str(count), "GPU_XID_REPLACE": "yes" if replace else "no"}


def of_log(path: str, conf: dict[str, Any]) -> Repeats:
    """The events of a log and its rotated files; none if it cannot be read."""
    repeats = Repeats(conf)
    try:
        files = history.files(path)
    except OSError:
        return repeats
    for file in files:
        with file:
            add_all(repeats, history.rows(file))
    return repeats


def add_all(repeats: Repeats, rows: Iterable[dict[str, Any]]) -> None:
    """Take several events into account."""
    for row in rows:
        repeats.add(row)


def _key(row: dict[str, Any]) -> Key | None:
    row = history.as_xid(row)
    if not history.is_gpu_event(row) or row["severity"] != "fatal" or row.get("injected"):
        return None
    if not isinstance(row.get("boot_id"), str) or _seconds(row["time"]) == 0:
        return None
    gpu = row["uuid"] if isinstance(row.get("uuid"), str) else host.short(row["pci"])
    return row["event"], row[row["event"]], gpu


def _seconds(text: str) -> float:
    """UNIX seconds of an event's time; 0 for the time of a line without a date."""
    try:
        return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0
