"""Traces of a lab on this machine, which `lab.down` has to remove: found without the lab's code."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab.base.settings import Lab


def processes(lab: Lab) -> list[str]:
    """The command lines of a lab's processes: its server, its guests and their processes."""
    result = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            group = (entry / "cgroup").read_text()
        except OSError:
            continue
        serves = "lab.daemon.server" in command and f"KILN_LAB_INDEX={lab.index}" in environment
        if f"{lab.instances}/" in command or serves or f"0::/{lab.bridge}/" in group:
            result.append(command)
    return result


def on_this_machine(lab: Lab) -> dict[str, list[str]]:
    """The lab's resources on this machine, by kind, determined without the lab's code."""
    lines = {line for table in mount_tables() for line in table.splitlines()}
    mounts = {" on ".join(line.split()[:2]) for line in lines if f"{lab.state}/" in line}
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    return {
        "mounts": sorted(mounts),
        "interfaces": [path.name for path in Path("/sys/class/net").glob(f"{lab.bridge}*")],
        "nft tables": [line for line in tables.stdout.splitlines() if line.endswith(lab.table)],
        "processes": processes(lab),
        "disks": [str(path) for path in lab.instances.glob("*/upper")],
        "control groups": control_groups(lab),
    }  # fmt: skip


def mount_tables() -> Iterator[str]:
    """The mounts of every process: a guest's are in a namespace of its own."""
    for table in Path("/proc").glob("[0-9]*/mounts"):
        with contextlib.suppress(OSError):
            yield table.read_text()


def control_groups(lab: Lab) -> list[str]:
    """The lab's own group and those below it."""
    return [folder for folder, _, _ in os.walk(f"/sys/fs/cgroup/{lab.bridge}")]


def nothing(lab: Lab) -> dict[str, list[str]]:
    """Return the answer of `on_this_machine` for a lab that has left nothing."""
    kinds = ("mounts", "interfaces", "nft tables", "processes", "disks", "control groups")
    return {kind: [] for kind in kinds}
