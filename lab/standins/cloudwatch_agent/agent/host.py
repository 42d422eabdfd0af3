"""What telegraf's inputs measure of this machine: cpu, mem, swap, disk, diskio, net, netstat.

github:influxdata/telegraf plugins/inputs/{cpu,mem,swap,disk,diskio,net,netstat}
@b27263146617cefe16c0b300107b58b111a7fa57; which fields and units the agent has of them:
github:aws/amazon-cloudwatch-agent translator/translate/metrics/config/registered_metrics.go,
receiver/adapter/accumulator/default_unit.go @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Tuple

    Fields = Dict[str, float]
    Row = Tuple[Dict[str, str], Fields]

_TICKS = 100.0  # USER_HZ, of every architecture that Linux has today
_SECTOR = 512
_TIMES: tuple[str, ...] = (
    "user",
    "nice",
    "system",
    "idle",
    "iowait",
    "irq",
    "softirq",
    "steal",
    "guest",
)
_TIMES += ("guest_nice",)
_STATES = {
    "01": "established",
    "02": "syn_sent",
    "03": "syn_recv",
    "04": "fin_wait1",
    "05": "fin_wait2",
    "06": "time_wait",
    "07": "close",
    "08": "close_wait",
    "09": "last_ack",
    "0A": "listen",
    "0B": "closing",
}
# Sections whose counters the agent sends as the difference to the value before, but for these.
DELTAS = {"diskio": {"iops_in_progress"}, "net": set(), "efa": set()}
# Field → unit, where the agent gives one by itself.
_SIZED = dict.fromkeys(("used", "cached", "total", "available", "free", "buffered"), "Bytes")
UNITS: dict[str, dict[str, str]] = {
    "cpu": dict.fromkeys([*(f"usage_{name}" for name in _TIMES), "usage_active"], "Percent"),
    "mem": dict(
        _SIZED,
        active="Bytes",
        inactive="Bytes",
        shared="Bytes",
        available_percent="Percent",
        used_percent="Percent",
    ),
    "swap": dict(_SIZED, used_percent="Percent"),
    "disk": dict(
        _SIZED,
        inodes_free="Count",
        inodes_total="Count",
        inodes_used="Count",
        used_percent="Percent",
    ),
    "diskio": {
        "iops_in_progress": "Count",
        "io_time": "Milliseconds",
        "reads": "Count",
        "writes": "Count",
        "read_bytes": "Bytes",
        "write_bytes": "Bytes",
        "read_time": "Milliseconds",
        "write_time": "Milliseconds",
    },
    "net": dict(
        {"bytes_sent": "Bytes", "bytes_recv": "Bytes"},
        **dict.fromkeys(
            ("drop_in", "drop_out", "err_in", "err_out", "packets_sent", "packets_recv"), "Count"
        ),
    ),
    "netstat": dict.fromkeys(
        [*(f"tcp_{name}" for name in _STATES.values()), "tcp_none", "udp_socket"], "Count"
    ),
}


class Cpu:
    """Shares of the time since the reading before; the first one has none."""

    def __init__(self, options: dict[str, Any], root: str = "") -> None:
        self.each = _every(options)
        self.total = options.get("totalcpu", True) is not False
        self.stat = root + "/proc/stat"
        self.before: dict[str, list[float]] = {}

    def rows(self) -> list[Row]:
        """A row for each processor that is asked for, and for all of them together."""
        listed: list[Row] = []
        for line in _lines(self.stat):
            words = line.split()
            if not words or not words[0].startswith("cpu"):
                continue
            if not (self.total if words[0] == "cpu" else self.each):
                continue
            name = "cpu-total" if words[0] == "cpu" else words[0]
            # An older kernel has fewer columns.
            now = ([float(word) / _TICKS for word in words[1:]] + [0.0] * 10)[:10]
            fields = dict(zip(("time_" + name for name in _TIMES), now))
            fields["time_active"] = sum(now[:8]) - now[3]
            if name in self.before:
                fields.update(_shares(self.before[name], now))
            self.before[name] = now
            listed.append(({"cpu": name}, fields))
        return listed


def _shares(before: list[float], now: list[float]) -> Fields:
    gained = [new - old for old, new in zip(before, now)]
    whole = sum(gained[:8])
    if whole <= 0:
        return {}
    # A guest's time is part of its host's user time.
    gained[0], gained[1] = gained[0] - gained[8], gained[1] - gained[9]
    fields = {"usage_" + name: 100 * gain / whole for name, gain in zip(_TIMES, gained)}
    fields["usage_active"] = 100 * (whole - gained[3]) / whole
    return fields


def memory(options: dict[str, Any], root: str = "") -> list[Row]:
    """Bytes of memory; what the kernel can reclaim of its slabs counts as cached."""
    meminfo = _meminfo(root)
    total = meminfo["MemTotal"]
    cached = meminfo["Cached"] + meminfo.get("SReclaimable", 0)
    used = total - meminfo["MemFree"] - meminfo["Buffers"] - cached
    fields = {
        "total": total,
        "free": meminfo["MemFree"],
        "available": meminfo["MemAvailable"],
        "buffered": meminfo["Buffers"],
        "cached": cached,
        "active": meminfo["Active"],
        "inactive": meminfo["Inactive"],
        "shared": meminfo["Shmem"],
        "used": used,
        "used_percent": 100 * used / total,
        "available_percent": 100 * meminfo["MemAvailable"] / total,
    }
    return [({}, fields)]


def swap(options: dict[str, Any], root: str = "") -> list[Row]:
    """Bytes of swap."""
    meminfo = _meminfo(root)
    total, free = meminfo["SwapTotal"], meminfo["SwapFree"]
    used = total - free
    share = 100 * used / total if total else 0.0
    return [({}, {"total": total, "free": free, "used": used, "used_percent": share})]


def _meminfo(root: str) -> dict[str, float]:
    pairs = re.findall(r"(?m)^(\w+):\s+([0-9]+) kB", "\n".join(_lines(root + "/proc/meminfo")))
    return {name: float(number) * 1024 for name, number in pairs}


def disks(options: dict[str, Any], root: str = "") -> list[Row]:
    """A row for each mounted file system that has a size; `resources` may name mount points."""
    wanted = None if _every(options) else options.get("resources")
    ignored = {"autofs", *options.get("ignore_file_system_types", [])}
    rows: list[Row] = []
    for line in _lines(root + "/proc/self/mounts"):
        device, path, kind = [_unescaped(word) for word in line.split()[:3]]
        if kind in ignored or (wanted is not None and path not in wanted):
            continue
        try:
            size = os.statvfs(path)
        except OSError:
            continue
        if not size.f_blocks:
            continue
        total, free = size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize
        used = (size.f_blocks - size.f_bfree) * size.f_frsize
        tags = {"path": path, "device": device.replace("/dev/", ""), "fstype": kind}
        if device == "none":
            tags["device"] = kind
        if options.get("drop_device") is True:
            del tags["device"]
        fields = {
            "total": float(total),
            "free": float(free),
            "used": float(used),
            "used_percent": 100.0 * used / (used + free) if used + free else 0.0,
            "inodes_total": float(size.f_files),
            "inodes_free": float(size.f_ffree),
            "inodes_used": float(size.f_files - size.f_ffree),
        }
        rows.append((tags, fields))
    return rows


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), word)


def block_devices(options: dict[str, Any], root: str = "") -> list[Row]:
    """A row for each block device; `resources` may name devices."""
    wanted = None if _every(options) else options.get("resources")
    rows: list[Row] = []
    for line in _lines(root + "/proc/diskstats"):
        words = line.split()
        if len(words) < 14 or (wanted is not None and words[2] not in wanted):
            continue
        reads, _, read_sectors, read_time, writes, _, written, write_time, going, busy = (
            float(word) for word in words[3:13]
        )
        fields = {
            "reads": reads,
            "read_bytes": read_sectors * _SECTOR,
            "read_time": read_time,
            "writes": writes,
            "write_bytes": written * _SECTOR,
            "write_time": write_time,
            "iops_in_progress": going,
            "io_time": busy,
        }
        rows.append(({"name": words[2]}, fields))
    return rows


def interfaces(options: dict[str, Any], root: str = "") -> list[Row]:
    """A row for each interface that is up; without `resources` not the loopback."""
    wanted = None if _every(options) else options.get("resources")
    rows: list[Row] = []
    for line in _lines(root + "/proc/net/dev"):
        name, colon, rest = line.partition(":")
        name, numbers = name.strip(), rest.split()
        if not colon or len(numbers) < 16:
            continue
        if wanted is not None:
            if name not in wanted:
                continue
        elif not _up(root, name):
            continue
        into, out = [float(n) for n in numbers[:4]], [float(n) for n in numbers[8:12]]
        fields = {}
        for way, side, values in (("in", "recv", into), ("out", "sent", out)):
            fields["bytes_" + side], fields["packets_" + side] = values[:2]
            fields["err_" + way], fields["drop_" + way] = values[2:]
        rows.append(({"interface": name}, fields))
    return rows


def _up(root: str, name: str) -> bool:
    (flags,) = _lines(root + "/sys/class/net/" + name + "/flags") or ["0x0"]
    up, loopback = 0x1, 0x8
    return bool(int(flags, 16) & up) and not int(flags, 16) & loopback


def connections(options: dict[str, Any], root: str = "") -> list[Row]:
    """How many sockets are in each state."""
    fields = dict.fromkeys(UNITS["netstat"], 0.0)
    for kind in ("tcp", "tcp6"):
        for line in _lines(root + "/proc/net/" + kind)[1:]:
            fields["tcp_" + _STATES.get(line.split()[3], "none")] += 1
    for kind in ("udp", "udp6"):
        fields["udp_socket"] += len(_lines(root + "/proc/net/" + kind)[1:])
    return [({}, fields)]


def _every(options: dict[str, Any]) -> bool:
    return "*" in options.get("resources", [])


def _lines(path: str) -> list[str]:
    try:
        with open(path) as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def reader(kind: str, options: dict[str, Any], root: str = "") -> Callable[[], list[Row]]:
    """What reads a section's rows: dimensions, fields."""
    if kind == "cpu":
        return Cpu(options, root).rows
    read = READERS[kind]
    return lambda: read(options, root)


READERS = {
    "mem": memory,
    "swap": swap,
    "disk": disks,
    "diskio": block_devices,
    "net": interfaces,
    "netstat": connections,
}
KINDS = ("cpu", *READERS)
