"""A control group for each guest, on hosts without systemd to assign one.

In a common group the guests would also share the groups of their units: when one guest's systemd
stops a unit, it removes the group in which another guest is just starting its unit of that name,
and that start fails with status 219 (CGROUP).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PREFIX = "kiln-guest-"
# When a group cannot be made or entered (a read-only mount), the guest runs without.
_ENTER = """
while [ "$1" != -- ]; do
  mkdir -p "$1" && echo $$ > "$1/cgroup.procs"
  shift
done 2> /dev/null
shift
exec "$@"
"""


def run_in(name: str) -> list[str]:
    """The command prefix that runs a command, as the same process, in a group of its own."""
    return ["/bin/sh", "-c", _ENTER, "sh", *(str(group) for group in _groups(name)), "--"]


def remove(name: str) -> None:
    """Remove the group and all groups below it, except those that still have processes."""
    for group in _groups(name):
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def remaining(start: str) -> list[str]:
    """The names passed to `run_in` that begin with `start` and still have a group."""
    groups = {group.name for own in _own() for group in own.glob(f"{_PREFIX}{start}*")}
    return sorted(name.removeprefix(_PREFIX) for name in groups)


def _groups(name: str) -> list[Path]:
    return [own / f"{_PREFIX}{name}" for own in _own()]


def _own() -> list[Path]:
    """This process's group in each hierarchy that systemd uses: name=systemd of v1, and v2."""
    groups = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kind, path = line.split(":", 2)
        mounts = {"name=systemd": ["systemd"], "": ["unified", "."]}.get(kind, [])
        for mount in (Path("/sys/fs/cgroup", folder) for folder in mounts):
            if (mount / "cgroup.procs").exists():
                groups.append(mount / path.lstrip("/"))
                break
    return groups
