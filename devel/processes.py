"""What running processes cost, from /proc: CPU time, context switches, memory."""

from __future__ import annotations

import contextlib
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found: list[int] = []
    queue = [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{one}/task/{one}/children").read_text()
            queue += [int(child) for child in children.split()]
    return found


def cpu_ns(pids: list[int]) -> int:
    """CPU time of the processes in ns (/proc/PID/schedstat)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return total


def switches_of(pids: list[int]) -> int:
    """Voluntary and other context switches of the processes so far."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if "ctxt_switches" in line:
                    total += int(line.split()[1])
    return total


def pss_kib(pid: int) -> int:
    """Proportional set size in KiB. Shared pages count less when others map them too."""
    return _rollup(pid, "Pss:")


def rss_kib(pid: int) -> int:
    """Resident set size in KiB, shared pages counted whole: the most that the PSS can be."""
    return _rollup(pid, "Rss:")


def _rollup(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0
