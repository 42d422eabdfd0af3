"""Control groups of labs and their guests, below the cell's own.

In a common group the guests would also share the groups of their units: when one guest's systemd
stops a unit, it removes the group in which another guest is just starting its unit of that name,
and that start fails with status 219 (CGROUP).
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from lab.machine.namespace import CGROUPS

_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'


def run_in(name: str) -> list[str]:
    """The command prefix that runs a command, as the same process, in a group that guests' root
    manages: LAB/GUEST. A guest can read the command's environment, which is PATH only."""
    group = CGROUPS / name
    group.mkdir(parents=True, exist_ok=True)
    for file in (group, *(group / f"cgroup.{kind}" for kind in ("procs", "threads"))):
        os.chown(file, 1, 1)
    return ["env", "-i", f"PATH={os.environ['PATH']}", "/bin/sh", "-c", _ENTER, "sh", str(group)]


def remove(name: str | Path) -> bool:
    """End all processes of a group and remove it; False if there is none."""
    group = CGROUPS / name  # which a path replaces
    there = group.exists()
    deadline = time.monotonic() + 5
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        time.sleep(0.002)
    return there
