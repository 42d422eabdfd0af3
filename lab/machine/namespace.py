"""Runs a program with the ids of guests, on a guest's disk or to make a root filesystem.

The program's root is nobody outside: it has no right on this machine, and cannot change its kernel
through /proc, /sys or a control group. All guests of a cell have the same 65,536 ids, so that a
layer's files have the right owners in each. While a disk is mounted the cell's own root is an id
after those; a guest's COMMAND does not have it, or it could take this machine's devices.

No mount is visible outside the namespace: a guest that is gone has left none.

    python -I namespace.py -- COMMAND...
        It may write what is the cell's, but setuid programs of this machine have no effect.
    python -I namespace.py HOME LAYER... -- COMMAND...
        HOME is the folder of a disk; layers are given lowest first. COMMAND finds the disk at
        /disk, HOME at /lab, and of this machine /usr, /proc, /sys, devices that anybody may use,
        and its own control group: a guest that unmounts its root sees no more. systemd-nspawn needs
        --private-users=no: with a user namespace of its own, 255 takes this machine's devices for
        the guest's root (https://github.com/systemd/systemd/issues/34243).

Runs as a program by itself, so it imports nothing of the lab. Exit status NO_INIT: the disk has no
init. Other failures are one line on stderr and exit status 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

IDS = 1 << 16
NO_INIT = 93
CGROUPS = Path("/sys/fs/cgroup")
ROOT, HOME = Path("/disk"), Path("/lab")
# The devices that systemd-nspawn shows to a guest, and the one that makes terminals.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "net/tun")
# Where the root of COMMAND is made.
_NEW_ROOT = Path("/run")
# A COMMAND's first words, in a control group of the guest's root (lab.machine.cgroups).
NSPAWN = (
    *("systemd-nspawn", "--quiet", f"--directory={ROOT}", "--private-users=no", "--settings=no"),
    *("--private-network", "--register=no", "--keep-unit", "--link-journal=no"),
    *("--resolv-conf=off", "--timezone=off"),
)
# In the environment of programs in a cell: settings of net.core, which it does not show.
NET_CORE = "KILN_LAB_CELL"
# A mount point: created in the root where it is missing, so that it belongs to the guest's root.
_LAB_FILES = "etc/kiln-lab"
# The folder in HOME with files for /etc. At each boot those are written that the disk lacks, or has
# only empty or as a link; on EC2 DHCP does that.
ETC_FILES = "given"

# <linux/sched.h>, <sys/mount.h>, <sys/prctl.h>
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWCGROUP = 0x00020000, 0x10000000, 0x02000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_MS_NODEV, _MS_NOSUID, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 0x4, 0x2, 0x8, 0x4000, 0x80000
_MS_BIND, _MNT_DETACH = 0x1000, 0x2
_PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)


def program(*disk: Path | str) -> list[str]:
    """The beginning of a command that runs the rest of it, as the module says; `disk` is its folder
    and its layers."""
    return [sys.executable, "-I", str(Path(__file__).resolve()), *map(str, disk), "--"]


def main(arguments: Sequence[str]) -> int:
    """Mount and run the command; its exit status, unless it replaces this process."""
    cut = arguments.index("--")
    command = list(arguments[cut + 1 :])
    try:
        take_ids((0, 1, IDS), (IDS, 0, 1))
        if not cut:
            check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        else:
            mount_disk(Path(arguments[0]), arguments[1:cut])
            take_ids((0, 0, IDS))
            enter(_NEW_ROOT)
            if not has_init(ROOT):
                sys.stderr.write("lab: kernel panic: the image has no init\n")
                return NO_INIT
            # systemd-nspawn 255 mounts /proc and /sys here, which 252 does not: it takes processes
            # and a network that are the user namespace's.
            check(libc.unshare(_CLONE_NEWPID | _CLONE_NEWNET), "unshare")
            if child := os.fork():
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            os.environ["SYSTEMD_LOG_TARGET"] = "console"  # the first process's default is another
    except OSError as error:
        sys.stderr.write(f"lab: the disk cannot be mounted: {error}\n")
        return 1
    os.execvp(command[0], command)  # noqa: S606 - it becomes systemd-nspawn
    return 1  # not reached


def take_ids(*ids: tuple[int, int, int]) -> None:
    """Become the root of a new user namespace, and of its mounts; `ids` are as of `map_ids`."""
    reader, writer = os.pipe()
    own, child = os.getpid(), os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        for kind in ("uid", "gid"):
            map_ids(own, kind, ids)
        os._exit(0)
    check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    os.close(writer)
    os.close(reader)
    if os.waitpid(child, 0)[1]:
        raise OSError("the ids of guests cannot be mapped")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.setgroups([])
    # Else a guest would keep what the cell unmounts: kernel logs of guests that are gone.
    mount("", "/", "", _MS_REC | _MS_SLAVE)


def map_ids(process: int, kind: str, entries: Sequence[tuple[int, int, int]]) -> None:
    """Write a process's map of uids or gids: those inside, outside, and how many."""
    text = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in entries)
    Path(f"/proc/{process}/{kind}_map").write_text(text)


def mount(source: str, point: Path | str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2). Raises OSError."""
    words = (os.fsencode(word) for word in (source, point, kind))
    check(libc.mount(*words, flags, os.fsencode(options)), f"mounting {kind or 'private'} {point}")


def mount_disk(home: Path, layers: Sequence[str]) -> None:
    """Mount a new root with a disk and its folder, which no other process sees. Raises OSError."""
    # Without flags: in COMMAND's user namespace systemd-nspawn could not take them away.
    mount("lab", _NEW_ROOT, "tmpfs", 0, "mode=755")
    for link in Path("/").glob("*"):
        if link.is_symlink() and link.resolve().parent == Path("/usr"):
            (_NEW_ROOT / link.name).symlink_to(link.readlink())
    root, own = (_NEW_ROOT / path.name for path in (ROOT, HOME))
    for name in ("usr", "proc", "sys"):
        (_NEW_ROOT / name).mkdir()
        mount(f"/{name}", _NEW_ROOT / name, "", _MS_BIND | _MS_REC)
    (_NEW_ROOT / "dev/net").mkdir(parents=True)
    for name in _DEVICES:
        (_NEW_ROOT / "dev" / name).touch()
        mount(f"/dev/{name}", _NEW_ROOT / "dev" / name, "", _MS_BIND)
    group = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    check(libc.unshare(_CLONE_NEWCGROUP), "unshare")
    mount(str(CGROUPS / group), _NEW_ROOT / "sys/fs/cgroup", "", _MS_BIND)
    for folder in (root, own, _NEW_ROOT / "run"):
        folder.mkdir()
    for name in ("upper", "work"):
        os.chown(home / name, 0, 0)
    lower = ":".join(_escaped(layer) for layer in reversed(layers))
    disk = f"upperdir={_escaped(home / 'upper')},workdir={_escaped(home / 'work')}"
    mount(home.name, root, "overlay", _MS_NODEV, f"lowerdir={lower},{disk},userxattr")
    _make_folder(root, _LAB_FILES)
    for source in (home / ETC_FILES).glob("*"):
        _give(root, f"etc/{source.name}", source.read_bytes())
    home.chmod(0o711)
    mount(str(home), own, "", _MS_BIND | _MS_REC)


def enter(root: Path) -> None:
    """Make `root` this process's root, with nothing of the former one below. Raises OSError."""
    mount(str(root), root, "", _MS_BIND | _MS_REC)
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", _MNT_DETACH), "unmounting the former root")
    os.chdir("/")
    mount(str(ROOT), ROOT, "", _MS_BIND | _MS_REC)  # one that may be moved


def _escaped(path: Path | str) -> str:
    return "".join(f"\\{letter}" if letter in "\\:," else letter for letter in str(path))


def has_init(root: Path) -> bool:
    """Return True if a root filesystem can boot."""
    # lexists: /sbin/init is usually an absolute link, which would be followed on the host.
    return any(os.path.lexists(root / path) for path in ("sbin/init", "usr/lib/systemd/systemd"))


def _make_folder(root: Path, path: str) -> None:
    """Create a folder that belongs to the guest's root, unless there is something of that name."""
    with _parent(root, path) as (opened, name), contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=opened)


def _give(root: Path, path: str, text: bytes) -> None:
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


def check(result: int, what: str) -> int:
    """The result of a call of the C library. Raises OSError."""
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
