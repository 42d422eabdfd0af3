"""A control group for each guest, where no systemd on the host hands them out.

In one group the guests would share the groups of their units too: while one guest's systemd starts
a unit, another's, done with its own of that name, removes the group, and the start fails with
status 219 (CGROUP).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PREFIX = "kiln-guest-"
# A group that cannot be made or entered (a read-only mount) is done without.
_ENTER = """
while [ "$1" != -- ]; do
  mkdir -p "$1" && echo $$ > "$1/cgroup.procs"
  shift
done 2> /dev/null
shift
exec "$@"
"""


def run_in(name: str) -> list[str]:
    """The words before a command that let it run, as the same process, in a group of its own."""
    return ["/bin/sh", "-c", _ENTER, "sh", *(str(group) for group in _groups(name)), "--"]


def remove(name: str) -> None:
    """Remove the group and all below it; what still has processes stays."""
    for group in _groups(name):
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def remaining(start: str) -> list[str]:
    """The names, among those given to `run_in`, that begin so and have a group."""
    found = {group.name for here in _here() for group in here.glob(f"{_PREFIX}{start}*")}
    return sorted(name.removeprefix(_PREFIX) for name in found)


def _groups(name: str) -> list[Path]:
    return [here / f"{_PREFIX}{name}" for here in _here()]


def _here() -> list[Path]:
    """This process's group in the hierarchies that systemd uses: its own of cgroup v1, and v2."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kind, path = line.split(":", 2)
        mounts = {"name=systemd": ["systemd"], "": ["unified", "."]}.get(kind, [])
        for mount in (Path("/sys/fs/cgroup", folder) for folder in mounts):
            if (mount / "cgroup.procs").exists():
                found.append(mount / path.lstrip("/"))
                break
    return found
