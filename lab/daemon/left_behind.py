"""Removes what a lab has left in its cell, whether its process is running or not."""

from __future__ import annotations

from pathlib import Path

from lab.base.settings import Lab
from lab.base.shell import run
from lab.daemon import cell
from lab.machine import bridge, cgroups, disks
from lab.machine.own_kernel import disk as own_kernel


def remove(lab: Lab) -> list[str]:
    """End guests, delete bridge and NAT; returns what was removed.

    AMIs stay. Disks of instances are deleted, because they exist no longer in EC2.
    """
    swept = []
    if cell.is_inside():
        if cgroups.remove(lab.bridge):
            swept.append("guests")
        if Path(f"/sys/class/net/{lab.bridge}").exists():
            swept.append(f"bridge {lab.bridge}")
        bridge.down(lab)
    for log in lab.instances.glob("*/kmsg"):
        run("umount", "--lazy", str(log), check=False)
    if lab.instances.is_dir():
        for folder in lab.instances.iterdir():
            disks.delete(lab, folder.name)
    for made in lab.images.glob("ami-*/disk*"):
        own_kernel.remove(lab, made.parent.name)
        swept.append(f"disk of {made.parent.name}")
    return swept
