"""Taking down what a lab left on the host, whether its process lives or not."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from lab import cgroups, disks, network
from lab.guest import MARK
from lab.settings import Lab
from lab.shell import run


def guests(lab: Lab) -> list[int]:
    """The process ids of this lab's systemd-nspawn processes and of its guests' PID 1."""
    nspawn = f"--directory={lab.instances}/".encode()
    init = f"{MARK}={lab.bridge}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if nspawn in command or (
                    b"systemd" in command and init in (entry / "environ").read_bytes().split(b"\0")
                ):
                    found.append(int(entry.name))
    return found


def sweep(lab: Lab) -> list[str]:
    """Stop guests, unmount disks, delete bridge and NAT; what was there to sweep.

    AMIs stay. Disks of instances go: nobody knows these instances any more.
    """
    swept = []
    pids = guests(lab)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            swept.append(f"process {pid}")
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    for group in cgroups.remaining(f"{lab.bridge}-"):
        cgroups.remove(group)
    for point in disks.mounts(lab.state):
        run("umount", "--lazy", str(point), check=False)
        swept.append(f"mount {point}")
    if Path(f"/sys/class/net/{lab.bridge}").exists():
        swept.append(f"bridge {lab.bridge}")
    network.down(lab)
    if lab.instances.is_dir():
        for folder in lab.instances.iterdir():
            disks.delete(lab, folder.name)
    return swept
