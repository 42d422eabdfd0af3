"""Mounts in a guest what it may not mount itself: its volumes' nodes, and their file systems.

    python -I mounting.py nodes PID FIRST [NAME=MAJOR:MINOR | LINK@NAME | -NAME]...
        In the /dev of the guest whose PID 1 is PID: nodes, links to nodes, and names to remove.
    python -I mounting.py mount PID FIRST NAME MAJOR:MINOR TARGET TYPE FLAGS OPTIONS
        The file system of a device, for a process of the guest, at a path as the process sees it.
    python -I mounting.py copy TARGET MAJOR:MINOR...
        The root file system on one of these devices into a folder; error 2 where none has one.

FIRST is the guest's user id 0 on this machine. The exit status is 0 or the number of the error.

What a guest may have written (links, file systems) is opened below its own root, and devices on
its file systems stay closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab.sandbox import namespace

# <linux/openat2.h>, <linux/mount.h>, <sched.h>
_OPENAT2, _OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 437, 428, 429, 442
_NO_LINKS, _IN_ROOT = 0x02 | 0x04, 0x10
_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_NODEV, _MS_NOSUID, _MS_NOEXEC = 0x1, 0x4, 0x2, 0x8
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_CLONE_TREE = 0x1 | 0x80000  # OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC
_TO_OPENED = 0x4 | 0x40  # MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH
_EMPTY_PATH, _CWD = 0x1000, -100
_DETACH = 2  # umount2(2): MNT_DETACH
_GROUP_DISK = 6  # of Debian's and Fedora's base files alike
_DEV = Path("/dev")

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    """struct open_how: https://man7.org/linux/man-pages/man2/openat2.2.html"""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def inside(pid: int, path: str) -> int:
    """What a path is for a process, opened (O_PATH) without following a link out of its root.

    A path that is not absolute begins at the process's working directory, and has no links.
    Raises OSError.
    """
    start, resolve = ("root", _IN_ROOT) if path.startswith("/") else ("cwd", _NO_LINKS)
    below = os.open(f"/proc/{pid}/{start}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _How(flags=os.O_PATH | os.O_CLOEXEC, resolve=resolve)
        return _call("", _OPENAT2, below, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
    finally:
        os.close(below)


def main(arguments: Sequence[str]) -> int:
    """Do one of them; the number of the error, or 0."""
    try:
        if arguments[0] == "copy":
            return _copy(arguments[1], arguments[2:])
        kind, pid, first, *rest = arguments
        if kind == "nodes":
            _nodes(int(pid), int(first), rest)
        else:
            name, number, target, file_system, flags, options = rest
            _mount(int(pid), int(first), (name, number), target, (file_system, int(flags), options))
    except OSError as error:
        sys.stderr.write(f"lab: {error}\n")
        return error.errno or errno.EIO
    return 0


def _nodes(pid: int, first: int, names: Sequence[str]) -> None:
    guest = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    own = _own_devices()
    trees = {}
    for name, _, number in (option.partition("=") for option in names if "=" in option):
        node = own / name
        _node(node, number)
        os.chown(node, first, first + _GROUP_DISK)
        node.chmod(0o660)
        trees[name] = _call(name, _OPEN_TREE, _CWD, bytes(node), _CLONE_TREE)
    _enter(guest)
    for name in (option[1:] for option in names if option.startswith("-")):
        _libc.umount2(bytes(_DEV / name), _DETACH)
        with contextlib.suppress(OSError):
            (_DEV / name).unlink()
    for name, tree in trees.items():
        point = os.open(_DEV / name, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        _call(name, _MOVE_MOUNT, tree, b"", point, b"", _TO_OPENED)
        os.close(point)
    for link, _, name in (option.partition("@") for option in names if "@" in option):
        with contextlib.suppress(FileExistsError):
            (_DEV / link).symlink_to(name)
            os.chown(_DEV / link, first, first, follow_symlinks=False)


def _mount(
    pid: int, first: int, device: tuple[str, str], target: str, how: tuple[str, int, str]
) -> None:
    point = inside(pid, target)
    guest = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    owners = namespace.user_namespace(first)
    own = _own_devices()
    node, made = own / device[0], own / ".mounted"
    _node(node, device[1])
    made.mkdir()
    kind, flags, options = how
    arguments = (bytes(node), bytes(made), kind.encode(), flags | _MS_NODEV, options.encode())
    if _libc.mount(*arguments) < 0:
        raise OSError(ctypes.get_errno(), f"mounting {device[0]}")
    tree = _call("open_tree", _OPEN_TREE, _CWD, bytes(made), _CLONE_TREE)
    mapped = namespace.MountAttr(namespace.ATTR_IDMAP, userns=owners)
    size = ctypes.sizeof(mapped)
    _call("mapping owners", _MOUNT_SETATTR, tree, b"", _EMPTY_PATH, ctypes.byref(mapped), size)
    _enter(guest)
    _call(target, _MOVE_MOUNT, tree, b"", point, b"", _TO_OPENED)


def _copy(target: str, numbers: Sequence[str]) -> int:
    into = os.open(target, os.O_PATH | os.O_DIRECTORY)
    own = _own_devices()
    for place, number in enumerate(numbers):
        node, made = own / f"disk{place}", own / f"mounted{place}"
        _node(node, number)
        made.mkdir()
        for kind in (b"ext4", b"xfs", b"btrfs"):
            if _libc.mount(bytes(node), bytes(made), kind, _MS_RDONLY | _MS_NODEV, b"") == 0:
                break
        else:
            continue
        if namespace.has_init(made):
            copying = ["cp", "-a", "--one-file-system", f"{made}/.", f"/proc/self/fd/{into}"]
            return subprocess.run(copying, pass_fds=[into], check=False).returncode and errno.EIO
    return errno.ENOENT


def _own_devices() -> Path:
    """An empty /dev, in a mount namespace of this process's own."""
    if _libc.unshare(_CLONE_NEWNS) or _libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "a mount namespace")
    if _libc.mount(b"lab", bytes(_DEV), b"tmpfs", _MS_NOSUID | _MS_NOEXEC, b"mode=755"):
        raise OSError(ctypes.get_errno(), "tmpfs")
    return _DEV


def _node(path: Path, number: str) -> None:
    major, minor = map(int, number.split(":"))
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(major, minor))


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "the guest's mount namespace")


def _call(what: str, *arguments: object) -> int:
    result = int(_libc.syscall(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
