"""Removes what a lab has left on the host, whether its process is running or not."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil

from lab.base.settings import Lab
from lab.base.shell import run
from lab.daemon import server_processes
from lab.machine import bridge, cgroups, disks
from lab.machine.common import MARK
from lab.machine.own_kernel import disk as own_kernel


def guests(lab: Lab) -> list[int]:
    """The process ids of this lab's systemd-nspawn and qemu processes and of its guests' PID 1."""
    directory = f"--directory={lab.instances}/"
    pids = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            qemu = command.startswith("qemu-system-") and f"{lab.instances}/" in command
            if (
                qemu
                or directory in command
                or ("systemd" in command and process.environ().get(MARK) == lab.bridge)
            ):
                pids.append(process.pid)
    return pids


def remove(lab: Lab) -> list[str]:
    """Stop guests, unmount disks, delete bridge and NAT; returns what was removed.

    AMIs stay. Disks of instances are deleted, because they exist no longer in EC2.
    Nothing is touched while a lab of another folder is up with this index: it is that lab's.
    """
    if server_processes.elsewhere(lab):
        return []
    swept = []
    pids = guests(lab)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            swept.append(f"process {pid}")
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    for group in cgroups.remaining(f"{lab.bridge}-"):
        cgroups.remove(group)
    for point in disks.mounts(lab.state):
        run("umount", "--lazy", str(point), check=False)
        swept.append(f"mount {point}")
    if Path(f"/sys/class/net/{lab.bridge}").exists():
        swept.append(f"bridge {lab.bridge}")
    bridge.down(lab)
    if lab.instances.is_dir():
        for folder in lab.instances.iterdir():
            disks.delete(lab, folder.name)
    for made in lab.images.glob("ami-*/disk*"):
        own_kernel.remove(lab, made.parent.name)
        swept.append(f"disk of {made.parent.name}")
    return swept
