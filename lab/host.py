"""What the lab needs of this machine: Linux, root, namespaces, kernel limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kiln.base.errors import operation_failed

# A guest's systemd takes about 20 inotify instances; the kernel's default of 128 per user, shared
# by all guests, ends with the sixth: boots then stop halfway without a word.
_LIMITS = {
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 1048576,
    "net/ipv4/ip_forward": 1,
}


def prepare() -> None:
    """Raise the limits that several guests at once need; never lower one."""
    for name, least in _LIMITS.items():
        path = Path("/proc/sys") / name
        if int(path.read_text()) < least:
            path.write_text(str(least))


def can_run() -> None:
    """Whether this machine can run guests at all.

    Raises KilnError (exit status 1) naming what is missing, and what works without it.
    """
    lacking = None
    if not sys.platform.startswith("linux"):
        lacking = f"Linux (this is {sys.platform})"
    elif os.geteuid() != 0:
        lacking = "root (it makes namespaces, mounts and a bridge): run it with sudo"
    elif not Path("/proc/self/ns/net").exists() or not Path("/proc/self/ns/pid").exists():
        lacking = "network and process namespaces in the kernel"
    elif "overlay" not in Path("/proc/filesystems").read_text() and not _loads("overlay"):
        lacking = "the overlay filesystem in the kernel"
    if lacking:
        raise operation_failed(
            f"the lab cannot run here: it needs {lacking}",
            hint="without it work: list, check, render, validate, and building in AWS "
            "(--target aws)",
        )


def _loads(module: str) -> bool:
    return subprocess.run(["modprobe", module], capture_output=True, check=False).returncode == 0
