"""The lab's requirements of this machine: Linux, user namespaces, overlays."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kiln.base.errors import operation_failed
from lab.base.settings import Lab
from lab.base.shell import run
from lab.machine import namespace

PROC = Path("/proc")
# pasta, which lets guests out, opens the first; the guests' kernel logs the second.
DEVICES = (Path("/dev/net/tun"), Path("/dev/fuse"))


def can_have_disks(lab: Lab) -> None:
    """Check, with an empty disk, that guests can have a user namespace and disks.

    Raises operation_failed, with what this machine lacks.
    """
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=lab.instances) as probe:
        for name in ("layer/usr/lib/systemd", "layer/etc", "upper", "work"):
            Path(probe, name).mkdir(parents=True)
        Path(probe, "layer/usr/lib/systemd/systemd").touch()
        done = subprocess.run(
            [*namespace.program(probe, f"{probe}/layer"), "touch", f"{namespace.ROOT}/made"],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        kind = run("stat", "--file-system", "--format=%T", str(lab.root), check=False).strip()
        raise operation_failed(
            f"this machine cannot give guests a user namespace with disks: {done.stderr.strip()}",
            hint=f"the lab's folder is on {kind}; if that is not ext4, xfs or btrfs, set "
            "KILN_LAB_STATE to another disk; see docs/troubleshooting.md",
        )


def can_run() -> None:
    """Check that this machine can run guests.

    Raises operation_failed with what is missing and what works without it.
    """
    settings, missing = PROC / "sys", None
    apparmor = settings / "kernel/apparmor_restrict_unprivileged_userns"
    if not sys.platform.startswith("linux"):
        missing = f"Linux (this is {sys.platform})"
    elif "\toverlay\n" not in (PROC / "filesystems").read_text():
        missing = "the overlay filesystem in the kernel: modprobe overlay"
    elif (settings / "user/max_user_namespaces").read_text().strip() == "0":
        missing = "user namespaces: sysctl -w user.max_user_namespaces=10000"
    elif os.geteuid() and apparmor.exists() and apparmor.read_text().strip() == "1":
        missing = f"user namespaces for users: sysctl -w kernel.{apparmor.name}=0"
    elif closed := [str(path) for path in DEVICES if not os.access(path, os.R_OK | os.W_OK)]:
        missing = f"read and write access: chmod a+rw {' '.join(closed)}"
    if missing:
        raise operation_failed(
            f"the lab cannot run here: it needs {missing}",
            hint="these work without it: list, check, render, validate, and building in AWS "
            "(--target aws)",
        )
