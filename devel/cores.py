"""How many processor cores this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def cores(cgroups: Path = _CGROUPS) -> int:
    """The cores that the scheduler and the control group allow; 1 at least.

    A container's limit is not in `os.cpu_count`: with 2 of a machine's 64 cores, 64 processes would
    wait for each other until their tests' deadlines.
    """
    allowed = len(os.sched_getaffinity(0))
    for quota in _quotas(cgroups):
        allowed = min(allowed, math.ceil(quota))
    return max(1, allowed)


def _quotas(cgroups: Path) -> list[float]:
    """The limits, in cores: of version 2 in one file, `max` without one; of version 1 in two, -1
    without one. (Linux, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst)"""
    quotas = []
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroups / "cpu.max").read_text().split()
        quotas.append(float(quota) / float(period) if quota != "max" else math.inf)
    with contextlib.suppress(OSError, ValueError):
        quota = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text()
        quotas.append(float(quota) / float(period) if float(quota) > 0 else math.inf)
    return [quota for quota in quotas if math.isfinite(quota)]
