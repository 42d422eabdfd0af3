"""The disks behind EBS volumes and snapshots besides root ones: sparse files, of the volume's size.

A guest has them as block devices, which it partitions, formats and mounts as on EC2.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.sandbox import mounting
from lab.sandbox.kernel_calls import Device
from lab.settings import Lab
from lab.shell import run
from lab.storage import loops

log = logging.getLogger("lab.volumes")

_GIB = 1 << 30


@dataclass(frozen=True)
class Attached:
    """A volume of an instance: its file, the device name that the call gave it."""

    volume_id: str
    file: Path
    device: str


def file(lab: Lab, volume_id: str) -> Path:
    """The file of a volume, which is made when an instance first has it."""
    return lab.state / "volumes" / volume_id


def snapshot_file(lab: Lab, snapshot_id: str) -> Path:
    """The file of a snapshot of a volume that has one."""
    return lab.state / "snapshots" / snapshot_id


def ensure(lab: Lab, volume_id: str, gib: int, content: Path | None) -> Path:
    """Make a volume's file of that size, with a snapshot's content or empty, unless there is one.

    It grows when the volume has grown.
    """
    made = file(lab, volume_id)
    made.parent.mkdir(exist_ok=True)
    if not made.exists():
        fresh = made.with_suffix(".new")
        if content:
            copy(content, fresh)
        else:
            fresh.touch()
        fresh.rename(made)
    if made.stat().st_size < gib * _GIB:
        os.truncate(made, gib * _GIB)
    return made


def copy(source: Path, target: Path) -> None:
    """Copy a sparse file. Raises CommandError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    run("cp", "--sparse=always", "--reflink=auto", str(source), str(target))


def link(source: Path, target: Path) -> None:
    """Give a file that does not change any more a second name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)


def clear(lab: Lab) -> None:
    """Delete all of a lab's volumes and snapshots: the instances and moto's state are gone."""
    for name in ("volumes", "snapshots"):
        shutil.rmtree(lab.state / name, ignore_errors=True)


class Disks:
    """The block devices of one guest, while it is on."""

    def __init__(self, lab: Lab, first: int, *, xen: bool, links: bool) -> None:
        self._lab, self._first, self._xen, self._links = lab, first, xen, links
        self._open: dict[str, tuple[str, Attached, loops.Loop]] = {}
        self._shown: dict[str, tuple[int, int]] = {}
        self._leader = 0
        self._lock = threading.Lock()

    def start(self, leader: int, attached: Sequence[Attached]) -> None:
        """Give a guest that boots its volumes. They are the same as before a reboot."""
        with self._lock:
            self._leader, self._shown = leader, {}
            for volume in attached:
                if volume.volume_id not in self._open:
                    self._add(volume)
            self._show()

    def attach(self, volume: Attached) -> None:
        """Give a running guest a volume. Raises loops.NoLoopDeviceError."""
        with self._lock:
            self._add(volume)
            self._show()

    def detach(self, volume_id: str) -> None:
        """Take a volume from a guest: what is mounted of it stays until it is unmounted there."""
        with self._lock:
            _, _, loop = self._open.pop(volume_id, ("", None, None))
            if loop:
                self._show()
                loop.flush()
                loop.close()

    def flush(self, volume_id: str) -> None:
        """Write what the guest has written to a volume's device into its file."""
        with self._lock:
            if volume_id in self._open:
                self._open[volume_id][2].flush()

    def close(self) -> None:
        """The guest is off."""
        with self._lock:
            for _, _, loop in self._open.values():
                loop.flush()
                loop.close()
            self._open, self._shown, self._leader = {}, {}, 0

    def devices(self) -> list[Device]:
        """The block devices that the guest may mount."""
        devices = []
        for name, _, loop in list(self._open.values()):
            devices += [
                Device(_partition(name, part), *numbers) for part, numbers in loop.nodes().items()
            ]
        return devices

    def changed(self, read: bool) -> None:
        """Show the guest the partitions that its devices have now, after reading them anew."""
        with self._lock:
            if read:
                for _, _, loop in self._open.values():
                    loop.read_partitions()
            self._show()

    def _add(self, volume: Attached) -> None:
        names = {name for name, _, _ in self._open.values()}
        wanted = self._name(volume.device, names)
        loop = loops.open_file(volume.file, self._lab.state)
        loop.read_partitions()
        self._open[volume.volume_id] = (wanted, volume, loop)

    def _name(self, device: str, taken: set[str]) -> str:
        """The name of the node below /dev: NVMe's, or Xen's on types that are not Nitro.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/device_naming.html
        """
        if self._xen:
            return re.sub(r"^sd", "xvd", device.removeprefix("/dev/"))
        return next(name for number in range(1, 128) if (name := f"nvme{number}n1") not in taken)

    def _show(self) -> None:
        """Make the nodes in the guest those of its devices."""
        shown, wanted = (
            self._shown,
            {device.name: (device.major, device.minor) for device in self.devices()},
        )
        changes = [f"-{name}" for name in shown if wanted.get(name) != shown[name]]
        changes += [
            f"{name}={major}:{minor}"
            for name, (major, minor) in wanted.items()
            if shown.get(name) != (major, minor)
        ]
        if self._links and not self._xen:
            # What the udev rules of Amazon Linux make of the name that the call gave:
            # amazonlinux/amazon-ec2-utils, 70-ec2-nvme-devices.rules and ebsnvme-id at 04abc91.
            changes += [
                f"{_partition(volume.device.removeprefix('/dev/'), part)}@{_partition(name, part)}"
                for name, volume, loop in self._open.values()
                for part in loop.nodes()
            ]
        self._shown = wanted
        if changes and self._leader:
            done = subprocess.run(
                [
                    *(sys.executable, "-I", mounting.__file__, "nodes", str(self._leader)),
                    *(str(self._first), *changes),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                log.warning("nodes of volumes: %s", done.stderr.strip())


def _partition(name: str, part: str) -> str:
    """The name of a partition's node; `part` is "" for the whole device."""
    return f"{name}p{part}" if part and name[-1:].isdigit() else f"{name}{part}"
