"""The disk of an AMI: partition table, boot loader, and a file system with the AMI's layers.

Made without a loop device, and without running a program of the AMI outside a guest's sandbox. The
layout is that of Debian's images for EC2 without their partition for EFI:
github:GoCarrot/debian-cloud-images config_space/bookworm/hooks/partition.AMD64
@7d54a975d3b9e0e603a4ac8f4c2b531b0fc489d8
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.base.errors import operation_failed
from lab.base.settings import Lab
from lab.base.shell import CommandError, run
from lab.machine import cgroups, images, namespace
from lab.machine.images import Image

HERE = Path(__file__).resolve().parent
_SECTOR = 512
_BIOS_BOOT, _ROOT = 2048, 262144  # first sectors
_BIOS_BOOT_SIZE = 6144
# Where GRUB's boot sector has the first sector of its core, and where the code ends that a
# partition table leaves room for; the core's own first sector ends with the list of its further
# blocks. See grub-core/boot/i386/pc/boot.S and diskboot.S of GRUB 2.06.
_KERNEL_SECTOR, _BOOT_CODE = 0x5C, 440
_BLOCK_LIST, _CORE_SEGMENT = 0x1F4, 0x820

_FSTAB = "PARTUUID={partuuid} / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1\n"
# Debian's images have netplan, which cloud-init gives the same to say.
_NETWORK = "[Match]\nName=e*\n\n[Network]\nDHCP=yes\n"


@dataclass(frozen=True)
class Root:
    """The ids of the root's file system and partition, and what the base has for guests that share
    this machine's kernel: masked units, and files."""

    uuid: str
    partuuid: str
    masked: Sequence[str]
    of_containers: Sequence[str]


def path(lab: Lab, image_id: str) -> Path:
    """Return the file of an AMI's disk while its instances boot from it."""
    return lab.images / image_id / "disk.raw"


def make(lab: Lab, image: Image, root: Root) -> Path:
    """Make the disk of an AMI; returns it. It is a sparse file of the AMI's volume's size.

    Raises KilnError (exit status 2) for an AMI whose kernel or kernel modules are stand-ins, and
    operation_failed when a tool fails.
    """
    layers = images.layer_paths(lab, Path(image.base), image.layers)
    home = lab.images / image.id / "disk"
    target = path(lab, image.id)
    remove(lab, image.id)
    try:
        boot = _prepare(lab, home, layers, root)
        _partitions(target, image.volume_size, root)
        _boot_code(target, boot)
        _file_system(target, home, layers, image.volume_size, root)
    except CommandError as error:
        remove(lab, image.id)
        raise operation_failed(f"{image.id}: its disk cannot be made: {error}") from None
    except BaseException:
        remove(lab, image.id)
        raise
    shutil.rmtree(home)
    return target


def remove(lab: Lab, image_id: str) -> None:
    """Remove an AMI's disk, finished or not."""
    shutil.rmtree(lab.images / image_id / "disk", ignore_errors=True)
    path(lab, image_id).unlink(missing_ok=True)


def _prepare(lab: Lab, home: Path, layers: Sequence[Path], root: Root) -> bytes:
    """Run prepare.sh over the layers in a guest's sandbox; returns what it printed.

    What it changes is in the folder `upper` of `home`.
    """
    for name in ("upper", "work", "root", "given", "lab"):
        (home / name).mkdir(parents=True)
    # On EC2 the image has systemd-resolved, and DHCP says whom to ask.
    (home / "given" / "resolv.conf").write_text(f"nameserver {lab.resolver}\n")
    (home / "given" / "hosts").write_text("127.0.0.1 localhost\n")
    files = home / "lab"
    (files / "fstab").write_text(_FSTAB.format(partuuid=root.partuuid))
    (files / "network").write_text(_NETWORK)
    (files / "masked").write_text("".join(f"{unit}\n" for unit in root.masked))
    (files / "remove").write_text("".join(f"{file}\n" for file in root.of_containers))
    shutil.copy(HERE / "prepare.sh", files)
    group = f"{lab.bridge}/{home.parent.name}"
    done = subprocess.run(
        [
            *cgroups.run_in(group),
            *namespace.program(home, *layers),
            *namespace.NSPAWN,
            "--as-pid2",
            "--pipe",
            f"--bind-ro={namespace.HOME / 'lab'}:/etc/kiln-lab",
            *("/bin/sh", "/etc/kiln-lab/prepare.sh", "/etc/kiln-lab"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    cgroups.remove(group)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise CommandError("; ".join(lines[-3:]) or f"prepare.sh: status {done.returncode}")
    # The mount point of the lab's files, which an instance on EC2 does not have.
    with contextlib.suppress(OSError):
        (home / "upper/etc/kiln-lab").rmdir()
    return done.stdout


def _partitions(disk: Path, gib: int, root: Root) -> None:
    with disk.open("xb") as file:
        file.truncate(gib << 30)
    table = (
        "label: gpt\nunit: sectors\n"
        f'14 : start={_BIOS_BOOT}, size={_BIOS_BOOT_SIZE}, type="BIOS boot"\n'
        f'1 : start={_ROOT}, type="Linux root (x86-64)", uuid={root.partuuid}\n'
    )
    run("sfdisk", "--quiet", "--no-tell-kernel", str(disk), text=table)


def _boot_code(disk: Path, boot: bytes) -> None:
    """Write GRUB's boot sector and core to the disk, as grub-bios-setup does to a device."""
    sector, core = bytearray(boot[:_SECTOR]), bytearray(boot[_SECTOR:])
    blocks = -(-len(core) // _SECTOR)
    if not blocks or blocks > _BIOS_BOOT_SIZE or sector[510:] != b"\x55\xaa":
        raise CommandError("prepare.sh printed no boot loader")
    struct.pack_into("<Q", sector, _KERNEL_SECTOR, _BIOS_BOOT)
    struct.pack_into("<QHH", core, _BLOCK_LIST, _BIOS_BOOT + 1, blocks - 1, _CORE_SEGMENT)
    with disk.open("r+b") as file:
        file.write(sector[:_BOOT_CODE])
        file.seek(_BIOS_BOOT * _SECTOR)
        file.write(core)


def _file_system(disk: Path, home: Path, layers: Sequence[Path], gib: int, root: Root) -> None:
    """Make the root's file system of all layers, which are merged where only mkfs sees them."""
    size = (gib << 30) // _SECTOR - _ROOT - 2048  # sectors, without the second partition table
    lower = ":".join(str(layer) for layer in (home / "upper", *reversed(layers)))
    options = f"ro,userxattr,lowerdir={lower}"
    script = 'mount -t overlay -o "$1" lab "$2" && shift 2 && exec mkfs.ext4 -d "$@"'
    mkfs = ["-q", "-F", "-b", "4096", "-U", root.uuid]
    run(
        *namespace.program(),
        *("env", f"MKE2FS_CONFIG={HERE / 'mke2fs.conf'}"),
        *("sh", "-c", script, "sh", options, str(home / "root")),
        *(str(home / "root"), *mkfs, "-E", f"offset={_ROOT * _SECTOR},nodiscard"),
        *(str(disk), str(size * _SECTOR // 4096)),
    )
    os.truncate(disk, gib << 30)
