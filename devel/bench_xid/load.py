"""The machine: what the figures depend on, and how busy it was."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from devel.bench_xid.contenders import PYTHON

_COARSE = 6  # CLOCK_MONOTONIC_COARSE advances with the kernel's tick; `time` has no name for it


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "kernel": os.uname().release,
        "tick_ms": round(time.clock_getres(_COARSE) * 1000, 3),
        "cpus": os.cpu_count(),
        "python": subprocess.run(
            [PYTHON, "-V"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "load_1m": os.getloadavg()[0],
    }


def cpu_s() -> tuple[float, float]:
    """CPU seconds so far: of the whole machine, and of this bench with its ended children."""
    ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    busy = sum(map(int, ticks[:3])) + sum(map(int, ticks[5:8]))  # not idle, not iowait
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK"), sum(own[:4])
