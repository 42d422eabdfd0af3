"""Answers a guest's calls that need a right over this machine: mounting a volume's file system.

In a user namespace the kernel mounts no block device and reads no partition table. On EC2 an
instance does both with its volumes, so those calls of a guest wait here (seccomp's user
notification, set up by `namespace`) and the lab does them in the guest's place, for volumes of
that instance only. All others go on to the kernel.
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.sandbox import mounting, namespace

log = logging.getLogger("lab.kernel_calls")

# <linux/seccomp.h>
_RECEIVE, _SEND, _STILL_WAITS = 0xC0502100, 0xC0182101, 0x40082102
_CALL = struct.Struct("=QIIiIQ6Q")  # struct seccomp_notif
_ANSWER = struct.Struct("=QqiI")  # struct seccomp_notif_resp
_CONTINUE = 1
_CAP_SYS_ADMIN = 21
_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "vfat")
# ext4's driver takes the older ones too; their own cannot map owners.
_DRIVERS = {"ext2": "ext4", "ext3": "ext4"}
# Not those that name another device or file of this machine: journal_path, logdev.
_OPTIONS = re.compile(
    r"(errors|data|commit|barrier|logbufs|logbsize|umask|dmask|fmask|codepage|iocharset|shortname"
    r"|subvol|compress)=[\w/.-]*"
    r"|discard|nodiscard|nobarrier|barrier|noload|norecovery|acl|noacl|user_xattr|nouser_xattr|attr2"
    r"|inode64|inode32|noquota|nouuid|minixdf|bsddf|seclabel|"
)
# MS_RDONLY, NOSUID, NODEV, NOEXEC, SYNCHRONOUS, DIRSYNC, NOATIME, NODIRATIME, SILENT, RELATIME,
# STRICTATIME, LAZYTIME
_FLAGS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x400 | 0x800 | 0x8000 | 1 << 21 | 1 << 24 | 1 << 25
_BLKRRPART, _BLKPG, _PAGE = 0x125F, 0x1269, 4096
_PARTITION = 152  # struct blkpg_partition
_PIDFD_GETFD = 438

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Device:
    """A block device of an instance: its name below /dev in the guest, its numbers here."""

    name: str
    major: int
    minor: int


Devices = Callable[[], list[Device]]
# Called when a device's partitions are to be read from it, or (False) are others than before.
Changed = Callable[[bool], None]


def listen(
    receiver: socket.socket, first: int, devices: Devices, changed: Changed
) -> threading.Thread:
    """Answer the calls of a guest that starts now, in a thread that ends with the guest.

    `receiver` is the other end of the socket that `lab.sandbox.namespace` has.
    """

    def answer() -> None:
        with receiver:
            _, listeners, _, _ = socket.recv_fds(receiver, 1, 1)
        if listeners:
            with contextlib.closing(_Listener(listeners[0], first, devices, changed)) as listener:
                listener.serve()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


class _Listener:
    def __init__(self, opened: int, first: int, devices: Devices, changed: Changed) -> None:
        self._opened, self._first = opened, first
        self._devices, self._changed = devices, changed

    def close(self) -> None:
        os.close(self._opened)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._opened, select.POLLIN)
        while True:
            ((_, event),) = poll.poll()
            if not event & select.POLLIN:
                return
            received = bytearray(_CALL.size)
            try:
                fcntl.ioctl(self._opened, _RECEIVE, received)
            except OSError:
                continue  # its caller was killed in the meantime
            identity, pid, _, number, _, _, *arguments = _CALL.unpack(received)
            flags = failed = 0
            try:
                if not self._done(identity, pid, number, arguments):
                    flags = _CONTINUE
            except OSError as error:
                failed = -(error.errno or errno.EIO)
            except Exception:
                log.exception("a call of a guest failed")
                failed = -errno.EIO
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._opened, _SEND, _ANSWER.pack(identity, 0, failed, flags))

    def _done(self, identity: int, pid: int, number: int, arguments: list[int]) -> bool:
        """Do a call of a guest's process; False: it is the kernel's."""
        _, _, mount, ioctl = namespace.numbers()
        if number == ioctl:
            return self._ioctl(identity, pid, arguments)
        if number != mount:
            # fsopen: without the newer calls mount(8) takes the old one.
            if _text(pid, arguments[0]) in _FILE_SYSTEMS and self._may(pid):
                raise OSError(errno.ENOSYS, "")
            return False
        kind = _text(pid, arguments[2])
        if kind not in _FILE_SYSTEMS or not self._may(pid):
            return False
        source, target = _text(pid, arguments[0]), _text(pid, arguments[1])
        options = _text(pid, arguments[4]) if arguments[4] else ""
        device = self._device(pid, source)
        if device is None:
            return False
        refused = [option for option in options.split(",") if not _OPTIONS.fullmatch(option)]
        if refused or arguments[3] & 0xFFFFFFFF & ~_FLAGS:
            log.warning("mount of %s with %s is refused", device.name, refused or arguments[3])
            raise OSError(errno.EINVAL, "")
        self._still_waits(identity)
        done = subprocess.run(
            [
                *(sys.executable, "-I", mounting.__file__, "mount", str(pid), str(self._first)),
                *(device.name, f"{device.major}:{device.minor}", target, _DRIVERS.get(kind, kind)),
                *(str(arguments[3] & _FLAGS), options),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            log.info("mount of %s: %s", device.name, done.stderr.strip())
            raise OSError(done.returncode, "")
        return True

    def _ioctl(self, identity: int, pid: int, arguments: list[int]) -> bool:
        """The partition table is to be read again, or a partition is named."""
        request = arguments[1] & 0xFFFFFFFF
        device_numbers = {os.makedev(device.major, device.minor) for device in self._devices()}
        with contextlib.suppress(OSError):
            device_numbers &= {Path(f"/proc/{pid}/fd/{arguments[0] & 0xFFFFFFFF}").stat().st_rdev}
        if not device_numbers or not self._may(pid):
            return False
        argument = None
        if request == _BLKPG:
            # struct blkpg_ioctl_arg, and the struct blkpg_partition that it leads to.
            operation, flags, size, place = struct.unpack("=iiixxxxQ", _read(pid, arguments[2], 24))
            if size < _PARTITION:
                raise OSError(errno.EINVAL, "")
            partition = ctypes.create_string_buffer(_read(pid, place, _PARTITION), _PARTITION)
            own = ctypes.addressof(partition)
            argument = struct.pack("=iiixxxxQ", operation, flags, _PARTITION, own)
        self._still_waits(identity)
        # The guest's own open file: it may have the device for itself (O_EXCL).
        opened = _shared(pid, arguments[0] & 0xFFFFFFFF)
        try:
            if os.fstat(opened).st_rdev not in device_numbers:
                raise OSError(errno.EBADF, "")
            fcntl.ioctl(opened, request, argument or 0)
        finally:
            os.close(opened)
        self._changed(request == _BLKRRPART)
        return True

    def _device(self, pid: int, source: str) -> Device | None:
        """The device of this guest's that a path of one of its processes leads to."""
        with contextlib.suppress(OSError):
            opened = mounting.inside(pid, source)
            try:
                status = os.fstat(opened)
            finally:
                os.close(opened)
            for device in self._devices():
                if status.st_rdev == os.makedev(device.major, device.minor):
                    return device
        return None

    def _may(self, pid: int) -> bool:
        """Whether a process may administer the guest: root in it, and in no namespace below it."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            effective = re.search(r"^CapEff:\s*(\w+)", status, re.MULTILINE)
            ids = Path(f"/proc/{pid}/uid_map").read_text().split()
            guests = ids == ["0", str(self._first), str(namespace.IDS)]
            return bool(guests and effective and int(effective[1], 16) >> _CAP_SYS_ADMIN & 1)
        return False

    def _still_waits(self, identity: int) -> None:
        """Raises OSError when the process is gone, so that its number may be another's."""
        fcntl.ioctl(self._opened, _STILL_WAITS, struct.pack("=Q", identity))


def _text(pid: int, place: int) -> str:
    """A text in the memory of a process; "" where there is none."""
    if not place:
        return ""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(place)
        # Not over the end of a page: the next may not be there.
        content = memory.read(_PAGE - place % _PAGE)
        if b"\0" not in content:
            with contextlib.suppress(OSError):
                content += memory.read(_PAGE)
    return content.partition(b"\0")[0].decode(errors="replace")


def _read(pid: int, place: int, size: int) -> bytes:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(place)
        return memory.read(size)


def _shared(pid: int, number: int) -> int:
    """A process's open file, open here too. Raises OSError."""
    status = Path(f"/proc/{pid}/status").read_text()
    group = re.search(r"^Tgid:\s*(\d+)", status, re.MULTILINE)
    process = os.pidfd_open(int(group[1]) if group else pid)
    try:
        shared = int(_libc.syscall(_PIDFD_GETFD, process, number, 0))
    finally:
        os.close(process)
    if shared < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return shared
