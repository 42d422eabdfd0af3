"""What the lab requires of this machine: Linux, root, namespaces, kernel limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kiln.base.errors import operation_failed

# A guest's systemd uses about 20 inotify instances. All guests share the kernel's default limit of
# 128 per user, so from the sixth guest on boots would hang without a message.
_LIMITS = {
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 1048576,
    "net/ipv4/ip_forward": 1,
}


def prepare() -> None:
    """Raise the kernel limits that several guests need; never lower one."""
    for name, minimum in _LIMITS.items():
        path = Path("/proc/sys") / name
        if int(path.read_text()) < minimum:
            path.write_text(str(minimum))


def can_run() -> None:
    """Check that this machine can run guests.

    Raises operation_failed with what is missing and what works without it.
    """
    missing = None
    if not sys.platform.startswith("linux"):
        missing = f"Linux (this is {sys.platform})"
    elif os.geteuid() != 0:
        missing = "root (it makes namespaces, mounts and a bridge): run it with sudo"
    elif not Path("/proc/self/ns/net").exists() or not Path("/proc/self/ns/pid").exists():
        missing = "network and process namespaces in the kernel"
    elif "overlay" not in Path("/proc/filesystems").read_text() and not _loads("overlay"):
        missing = "the overlay filesystem in the kernel"
    if missing:
        raise operation_failed(
            f"the lab cannot run here: it needs {missing}",
            hint="these work without it: list, check, render, validate, and building in AWS "
            "(--target aws)",
        )


def _loads(module: str) -> bool:
    return subprocess.run(["modprobe", module], capture_output=True, check=False).returncode == 0
