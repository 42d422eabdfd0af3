"""Mounts a guest's disk and runs systemd-nspawn on it, in a mount namespace of their own.

A guest has a user namespace: its root is an ordinary user of this machine without any right, and
cannot change the host's kernel through /proc, /sys or a control group. Files keep the owners on
disk that they have in the guest, whatever ids the guest has on this machine, because the layers are
mounted with mapped owners (mount_setattr(2), Linux 5.12; below an overlay, Linux 5.19). That takes
no time, where changing the owners of a root filesystem takes a minute.

No mount is visible outside the namespace: what a guest made setuid cannot be reached on this
machine, and a guest that is gone has left no mount.

    python -I namespace.py FIRST HOME LAYER... -- COMMAND...
        FIRST is the guest's user id 0 on this machine; it has 65,536 ids. HOME is the folder of the
        disk; layers are given lowest first. COMMAND finds the root in HOME/root, and HOME itself,
        with mapped owners, in HOME/mounts/home.

Runs as a program by itself, so it imports nothing of the lab. Exit status NO_INIT: the disk has no
init. Other failures are one line on stderr and exit status 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

IDS = 1 << 16
NO_INIT = 93
# A mount point: created in the root where it is missing, so that it belongs to the guest's root.
_LAB_FILES = "etc/kiln-lab"
# The folder in HOME with files for /etc. At each boot those are written that the disk lacks, or has
# only empty or as a link; on EC2 DHCP does that.
ETC_FILES = "given"

# <linux/mount.h>, <linux/sched.h>, <sys/mount.h>; the numbers of these system calls are the same on
# every processor: https://www.kernel.org/doc/html/latest/process/adding-syscalls.html
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NODEV, _MS_NOSUID, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 0x4, 0x2, 0x8, 0x4000, 0x80000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 0x1, 0x80000
_MOVE_MOUNT_F_EMPTY_PATH, _AT_EMPTY_PATH, _AT_FDCWD = 0x4, 0x1000, -100
_ATTR_RDONLY, _ATTR_NODEV, ATTR_IDMAP = 0x1, 0x4, 0x00100000

# unshare(2): why there is no new user namespace.
_NO_NAMESPACE = {
    errno.ENOSPC: "this machine allows no user namespaces (user.max_user_namespaces)",
    errno.EPERM: "no user namespace can be made here: in a chroot the kernel makes none, and a "
    "container may forbid it",
}

_libc = ctypes.CDLL(None, use_errno=True)


class MountAttr(ctypes.Structure):
    """struct mount_attr: https://man7.org/linux/man-pages/man2/mount_setattr.2.html"""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


def program(first: int, home: Path | str, layers: Sequence[Path | str]) -> list[str]:
    """The beginning of a command that runs the rest of it on a disk, as the module says."""
    place = [sys.executable, "-I", str(Path(__file__).resolve()), str(first), str(home)]
    return [*place, *map(str, layers), "--"]


def main(arguments: Sequence[str]) -> int:
    """Mount and run the command, which replaces this process; returns where that cannot be."""
    cut = arguments.index("--")
    first, home, *layers = arguments[:cut]
    try:
        merged = mount(int(first), Path(home), layers)
    except OSError as error:
        sys.stderr.write(f"lab: the disk cannot be mounted: {error}\n")
        return 1
    if not has_init(merged):
        sys.stderr.write("lab: kernel panic: the image has no init\n")
        return NO_INIT
    command = list(arguments[cut + 1 :])
    os.execvp(command[0], command)  # noqa: S606 - it becomes systemd-nspawn
    return 1  # not reached


def mount(first: int, home: Path, layers: Sequence[str]) -> Path:
    """Enter a new mount namespace and mount the disk there; its root. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    # What is unmounted on the host goes here too; nothing goes from here to the host.
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "making / a slave mount")
    points = home / "mounts"
    flags = _MS_NODEV | _MS_NOSUID | _MS_NOEXEC
    _check(_libc.mount(b"lab", bytes(points), b"tmpfs", flags, b"mode=700"), f"tmpfs {points}")
    owners = user_namespace(first)
    lower = []
    for number, layer in enumerate(layers):
        point = points / str(number)
        _mount_mapped(layer, point, owners, MountAttr(ATTR_IDMAP | _ATTR_RDONLY | _ATTR_NODEV))
        lower.append(str(point))
    view = points / "home"
    # It holds the guest's node of the kernel log.
    _mount_mapped(str(home), view, owners, MountAttr(ATTR_IDMAP, _ATTR_NODEV))
    os.close(owners)
    merged = home / "root"
    options = f"lowerdir={':'.join(reversed(lower))},upperdir={view}/upper,workdir={view}/work"
    _check(
        _libc.mount(home.name.encode(), bytes(merged), b"overlay", _MS_NODEV, options.encode()),
        "mounting the overlay",
    )
    _make_folder(merged, _LAB_FILES, first)
    for source in (home / ETC_FILES).glob("*"):
        _give(merged, f"etc/{source.name}", source.read_bytes(), first)
    return merged


def has_init(root: Path) -> bool:
    """Return True if a root filesystem can boot."""
    # lexists: /sbin/init is usually an absolute link, which would be followed on the host.
    return any(os.path.lexists(root / path) for path in ("sbin/init", "usr/lib/systemd/systemd"))


def user_namespace(first: int) -> int:
    """A file descriptor of a user namespace with the mapping of the layers.

    Besides the guest's ids it maps this machine's root, as the id after the last one: the kernel
    and systemd-nspawn create files in the disk as root before they give them away.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        failed = _libc.unshare(_CLONE_NEWUSER)
        os.write(writer, bytes([ctypes.get_errno() if failed else 0]))
        signal.pause()
        os._exit(0)
    try:
        if failure := os.read(reader, 1)[0]:
            raise OSError(_NO_NAMESPACE.get(failure, os.strerror(failure)))
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{kind}").write_text(f"0 {first} {IDS}\n{IDS} 0 1\n")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def _mount_mapped(source: str, point: Path, owners: int, attributes: MountAttr) -> None:
    point.mkdir()
    attributes.userns = owners
    tree = _check(
        _libc.syscall(
            _OPEN_TREE, _AT_FDCWD, source.encode(), _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
        ),
        f"opening {source}",
    )
    _check(
        _libc.syscall(
            _MOUNT_SETATTR,
            tree,
            b"",
            _AT_EMPTY_PATH,
            ctypes.byref(attributes),
            ctypes.sizeof(attributes),
        ),
        f"mapping the owners of {source} (that takes Linux 5.19 or newer, and ext4, xfs or btrfs)",
    )
    _check(
        _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, bytes(point), _MOVE_MOUNT_F_EMPTY_PATH),
        f"mounting {source}",
    )
    os.close(tree)


def _make_folder(root: Path, path: str, first: int) -> None:
    """Create a folder that belongs to the guest's root, unless there is something of that name."""
    with _parent(root, path) as (opened, name), contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=opened)
        os.chown(name, first, first, dir_fd=opened, follow_symlinks=False)


def _give(root: Path, path: str, text: bytes, first: int) -> None:
    """Write a file of the guest's root, unless it is a file with content.

    It is the guest's from then on: it can be edited and replaced.
    """
    with _parent(root, path) as (opened, name):
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(name, dir_fd=opened)
            if stat.S_ISREG(status.st_mode) and status.st_size:
                return
            os.unlink(name, dir_fd=opened)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, 0o644, dir_fd=opened), "wb") as file:
            os.fchown(file.fileno(), first, first)
            os.fchmod(file.fileno(), 0o644)
            file.write(text)


@contextlib.contextmanager
def _parent(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """The opened folder of a file on the disk, and the file's name.

    No link of the disk is followed: it would lead into this machine's files. A disk on which that
    folder or file cannot be made boots without it.
    """
    parent, name = os.path.split(path)
    try:
        opened = os.open(root / parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        opened = -1
    try:
        with contextlib.suppress(OSError):
            yield opened, name
    finally:
        if opened >= 0:
            os.close(opened)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
