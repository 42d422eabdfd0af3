"""Loop devices: block devices of this machine whose content is a file.

A device is cleared by the kernel when nobody has it open any more, so one whose lab was killed goes
with the guest that had it mounted. https://man7.org/linux/man-pages/man4/loop.4.html
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.shell import run

# <linux/loop.h>, <linux/fs.h>
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR, _PARTSCAN = 4, 8
_BLKFLSBUF = 0x1261
_MAJOR = 7
# Several labs take free devices at once.
_TRIES = 50

_making = threading.Lock()


class NoLoopDeviceError(OSError):
    """This machine has no loop devices, or none is free."""


class _Info(ctypes.Structure):
    """struct loop_info64"""

    _fields_ = (
        ("device", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
        ("rdevice", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("sizelimit", ctypes.c_uint64),
        ("number", ctypes.c_uint32),
        ("encrypt_type", ctypes.c_uint32),
        ("encrypt_key_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("file_name", ctypes.c_char * 64),
        ("crypt_name", ctypes.c_char * 64),
        ("encrypt_key", ctypes.c_char * 32),
        ("init", ctypes.c_uint64 * 2),
    )


class _Config(ctypes.Structure):
    """struct loop_config"""

    _fields_ = (
        ("fd", ctypes.c_uint32),
        ("block_size", ctypes.c_uint32),
        ("info", _Info),
        ("reserved", ctypes.c_uint64 * 8),
    )


@dataclass(frozen=True)
class Loop:
    """A loop device that this process has open."""

    number: int
    opened: int
    scratch: Path  # where a node of it can be made for a moment

    def nodes(self) -> dict[str, tuple[int, int]]:
        """The device's numbers and those of its partitions, by what follows the device's name."""
        numbers = {"": (_MAJOR, self.number)}
        name = f"loop{self.number}"
        for part in sorted(Path(f"/sys/block/{name}").glob(f"{name}p*/dev")):
            major, minor = part.read_text().split(":")
            numbers[part.parent.name.removeprefix(f"{name}p")] = (int(major), int(minor))
        return numbers

    def read_partitions(self) -> None:
        """Tell the kernel the partitions that are on the device: it may know no partition tables.

        partx does nothing where the kernel has found them by itself.
        """
        with _node(self.scratch, self.number) as node:
            run("partx", "--update", str(node), check=False)

    def flush(self) -> None:
        """Write what was written to the device into its file."""
        os.fsync(self.opened)
        fcntl.ioctl(self.opened, _BLKFLSBUF)

    def close(self) -> None:
        """Let it go: the kernel clears it when it is mounted nowhere any more."""
        with contextlib.suppress(OSError):
            os.close(self.opened)


def open_file(file: Path, scratch: Path, *, writable: bool = True) -> Loop:
    """A loop device of a file. `scratch` is a folder for the device's node, for a moment.

    Raises NoLoopDeviceError. This machine's /dev may lack the node of a device that exists.
    """
    mode = os.O_RDWR if writable else os.O_RDONLY
    backing = os.open(file, mode | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            number = _free()
            with _node(scratch, number) as node:
                opened = _open(node, mode)
            config = _Config(fd=backing)
            config.info.flags = _AUTOCLEAR | _PARTSCAN
            config.info.file_name = os.fsencode(file.name)[:63]
            try:
                fcntl.ioctl(opened, _CONFIGURE, bytes(config))
            except OSError as error:
                os.close(opened)
                if error.errno != errno.EBUSY:
                    raise NoLoopDeviceError(
                        error.errno, f"loop{number}: {error.strerror}"
                    ) from None
                continue
            return Loop(number, opened, scratch)
    finally:
        os.close(backing)
    raise NoLoopDeviceError(errno.EBUSY, "no loop device is free")


def _open(node: Path, mode: int) -> int:
    try:
        return os.open(node, mode | os.O_CLOEXEC)
    except OSError as error:
        raise _none(node.name, error) from None


def _none(name: str, error: OSError) -> NoLoopDeviceError:
    return NoLoopDeviceError(error.errno, f"{name}: {error.strerror}")


def _free() -> int:
    control = _open(Path("/dev/loop-control"), os.O_RDWR)
    try:
        return fcntl.ioctl(control, _GET_FREE)
    finally:
        os.close(control)


@contextlib.contextmanager
def _node(scratch: Path, number: int) -> Iterator[Path]:
    with _making:
        node = scratch / f"loop{number}"
        node.unlink(missing_ok=True)
        os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(_MAJOR, number))
        try:
            yield node
        finally:
            node.unlink()
