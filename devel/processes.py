"""What running processes cost: CPU time, context switches, memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def family(pid: int) -> list[int]:
    """A process and all its descendants; [] when it has ended."""
    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def cpu_ns(pids: list[int]) -> int:
    """CPU time of the processes in ns; psutil has it in clock ticks, too coarse when idle."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return total


def switches_of(pids: list[int]) -> int:
    """Voluntary and involuntary context switches of the processes so far."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += sum(psutil.Process(pid).num_ctx_switches())
    return total


def pss_kib(pid: int) -> int:
    """Proportional set size in KiB: shared pages are divided among the processes; 0 if it ended."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss) // 1024
    except psutil.Error:
        return 0


def rss_kib(pid: int) -> int:
    """Resident set size in KiB, an upper limit of the PSS; 0 when the process has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss) // 1024
    except psutil.Error:
        return 0
