"""What the lab requires of this machine: Linux, root, namespaces, kernel limits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kiln.base.errors import operation_failed
from lab import folders, locks
from lab.sandbox import namespace
from lab.settings import Lab

# A guest's systemd uses about 20 inotify instances. All guests share the kernel's default limit of
# 128 per user, so from the sixth guest on boots would hang without a message.
_LIMITS = {
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 1048576,
    "net/ipv4/ip_forward": 1,
}


# With 1 (the default of many distributions) nobody but root in the first user namespace reads the
# kernel log, so no guest's Xid monitor would.
# https://www.kernel.org/doc/html/latest/admin-guide/sysctl/kernel.html#dmesg-restrict
_DMESG = Path("/proc/sys/kernel/dmesg_restrict")
# What labs of all folders know of it. It goes with a reboot, as the setting does: what the setting
# was before, and the processes of the labs whose guests read the log, from before a lab is up.
_OF_KERNEL_LOG = Path("/run/kiln-lab/kernel-log")
_DMESG_BEFORE = "dmesg_restrict"
SYSCTLS = Path("/proc/sys")
INTERFACES = Path("/sys/class/net")
MACHINE_ID = Path("/etc/machine-id")
# What the limits were before: a file of labs that share a folder.
_LIMITS_BEFORE = ".limits"


def prepare(lab: Lab) -> None:
    """Raise the kernel limits that several guests need, and let guests read the kernel log.

    A limit is not lowered when a lab goes down: `restore` undoes the second, `lower` the first.
    """
    folders.private(lab.root, lab.state)
    with locks.alone(_lock(lab.root)):
        before = _raised(lab.root)
        for name, minimum in _LIMITS.items():
            path = SYSCTLS / name
            value = int(path.read_text())
            if value < minimum:
                before.setdefault(name, value)
                path.write_text(str(minimum))
        if before:
            (lab.root / _LIMITS_BEFORE).write_text(json.dumps(before))
    _OF_KERNEL_LOG.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locks.alone(_lock(_OF_KERNEL_LOG)):
        _reader(lab).write_text(str(os.getpid()))
        if _DMESG.exists() and _DMESG.read_text().strip() != "0":
            (_OF_KERNEL_LOG / _DMESG_BEFORE).write_text(_DMESG.read_text())
            _DMESG.write_text("0")


def _lock(root: Path) -> Path:
    """One lab at a time changes the kernel's settings: others start and go down meanwhile."""
    return root / ".kernel.lock"


def _raised(root: Path) -> dict[str, int]:
    """The limits that labs below `root` have raised, and what they were before."""
    with contextlib.suppress(OSError, ValueError):
        return {str(name): int(value) for name, value in _read_limits(root).items()}
    return {}


def _read_limits(root: Path) -> dict[str, Any]:
    limits = json.loads((root / _LIMITS_BEFORE).read_text())
    return limits if isinstance(limits, dict) else {}


def labs_up() -> list[str]:
    """The labs of this machine that are up, whatever their folder."""
    return sorted(
        path.name for path in INTERFACES.iterdir() if re.fullmatch(r"lab[0-9]+", path.name)
    )


def lower(root: Path) -> list[str]:
    """Give the kernel the limits that it had before the first lab below `root`; what was lowered.

    One that somebody else has set since is left alone.
    """
    lowered = []
    with locks.alone(_lock(root)):
        for name, value in _raised(root).items():
            path = SYSCTLS / name
            if name in _LIMITS and path.read_text().strip() == str(_LIMITS[name]):
                path.write_text(str(value))
                lowered.append(f"kernel setting {name.replace('/', '.')}, {value} again")
        (root / _LIMITS_BEFORE).unlink(missing_ok=True)
    return lowered


def restore(lab: Lab) -> None:
    """Close the kernel log again, if a lab opened it and no other lab of this machine runs."""
    if not _OF_KERNEL_LOG.is_dir():
        return
    before = _OF_KERNEL_LOG / _DMESG_BEFORE
    with locks.alone(_lock(_OF_KERNEL_LOG)):
        _reader(lab).unlink(missing_ok=True)
        if before.exists() and not any(map(_runs, _OF_KERNEL_LOG.glob("*.pid"))):
            _DMESG.write_text(before.read_text())
            before.unlink(missing_ok=True)


def _reader(lab: Lab) -> Path:
    folder = hashlib.sha256(str(lab.root).encode()).hexdigest()[:8]
    return _OF_KERNEL_LOG / f"{lab.bridge}-{folder}.pid"


def _runs(pid_file: Path) -> bool:
    try:
        return Path("/proc", pid_file.read_text().strip() or "none").exists()
    except OSError:
        return False


def can_map_owners(lab: Lab) -> None:
    """Check, with an empty disk, that guests can have a user namespace.

    Raises operation_failed, with what this machine lacks.
    """
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=lab.instances) as probe:
        for name in ("layer/usr/lib/systemd", "layer/etc", "upper", "work", "root", "mounts"):
            Path(probe, name).mkdir(parents=True)
        Path(probe, "layer/usr/lib/systemd/systemd").touch()
        first = lab.first_id(lab.gateway)
        done = subprocess.run(
            [
                *namespace.program(first, probe, [f"{probe}/layer"]),
                *("sh", "-c", 'echo > "$1/made" && stat -c %u "$1/usr"', "sh", f"{probe}/root"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0 or done.stdout.strip() != str(first):
        reason = done.stderr.strip().removeprefix("lab: ") or "the owners of files are not mapped"
        raise operation_failed(
            f"this machine cannot give guests a user namespace: {reason}",
            hint="the lab needs Linux 5.19 or newer, and its folder on ext4, xfs or btrfs: set "
            "KILN_LAB_STATE to another disk, or build in AWS (--target aws)",
        )


def require_id() -> None:
    """Check that this machine has an id, of which systemd-nspawn makes addresses for guests.

    A machine gets one at its first boot, and a container that never booted may have none. Raises
    operation_failed without one.
    """
    with contextlib.suppress(OSError):
        if re.fullmatch(r"[0-9a-f]{32}", MACHINE_ID.read_text().strip()):
            return
    raise operation_failed(
        f"{MACHINE_ID} holds no id, of which systemd-nspawn makes guests' network addresses",
        hint="systemd-machine-id-setup writes one",
    )


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
