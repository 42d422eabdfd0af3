"""Disk images of other hypervisors, made raw by qemu-img.

The formats and the words of a refusal are those of VM Import/Export:
https://docs.aws.amazon.com/vm-import/latest/userguide/vmie_prereqs.html
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path
from typing import IO, cast

# Format of EC2's API → qemu's name.
_DRIVERS = {"VMDK": "vmdk", "VHD": "vpc", "VHDX": "vhdx"}
# Of a raw disk of the lab, as a volume's.
_LARGEST = 64 << 30
# A sparse VMDK's header: magic, version, flags, capacity in sectors. Both flags: its grains are
# compressed, and are in the file in the order in which they are streamed.
_VMDK = struct.Struct("<4sIIQ")
_STREAMED = 0x30000


class NotADiskError(Exception):
    """What VM Import/Export says of a file that it does not take."""


class NoProgramError(Exception):
    """This machine has no qemu-img."""


def names() -> list[str]:
    """The formats besides RAW and OVA."""
    return list(_DRIVERS)


def disk_of_ova(archive: Path, target: Path) -> None:
    """Write the one disk of an OVA, a VMDK. Raises NotADiskError."""
    try:
        with tarfile.open(archive) as opened:
            members = [member for member in opened if member.isfile()]
            if not any(member.name.endswith(".ovf") for member in members):
                raise NotADiskError("OVF file not found")
            disks = [member for member in members if member.name.endswith(".vmdk")]
            if len(disks) != 1:
                raise NotADiskError(f"AMI Kiln lab: the OVA has {len(disks)} disks, and not one")
            content = opened.extractfile(disks[0])
            with target.open("wb") as written:
                shutil.copyfileobj(cast("IO[bytes]", content), written)
    except (tarfile.TarError, EOFError):
        raise NotADiskError("OVF file not found") from None


def to_raw(form: str, image: Path, target: Path) -> None:
    """Write the disk of an image as a raw one. Raises NotADiskError and NoProgramError.

    The image is a stranger's: nothing in it may name another file of this machine.
    """
    if not shutil.which("qemu-img"):
        raise NoProgramError(f"{form} needs qemu-img on this machine (Debian's qemu-utils)")
    if form == "VMDK" and not _is_streamed(image):
        raise NotADiskError(f"Unsupported {form} File Format")
    source = {"driver": _DRIVERS[form], "file": {"driver": "file", "filename": str(image)}}
    if form == "VMDK":
        source["backing"] = None  # type: ignore[assignment]
    opened = f"json:{json.dumps(source)}"
    about = _qemu_img("info", "--output=json", opened)
    if about is None or int(json.loads(about)["virtual-size"]) > _LARGEST:
        raise NotADiskError(f"Unsupported {form} File Format")
    if _qemu_img("convert", "-O", "raw", opened, str(target)) is None:
        raise NotADiskError(f"Unsupported {form} File Format")


def _is_streamed(image: Path) -> bool:
    """Whether a VMDK is whole in one file, stream-optimized: the only ones that are imported."""
    with image.open("rb") as opened:
        header = opened.read(_VMDK.size)
    if len(header) < _VMDK.size:
        return False
    magic, _, flags, capacity = _VMDK.unpack(header)
    # Without a capacity the header is followed by names of other files.
    return bool(magic == b"KDMV" and flags & _STREAMED == _STREAMED and capacity > 0)


def _qemu_img(*words: str) -> str | None:
    """What it prints; None when it fails."""
    try:
        done = subprocess.run(
            ["qemu-img", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
