"""The lab's requirements of this machine: Linux, root, namespaces, kernel limits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kiln.base.errors import operation_failed
from lab.base import folders, locks
from lab.base.settings import Lab
from lab.base.shell import CommandError, run
from lab.machine import bridge, namespace

# A guest's systemd uses about 20 inotify instances. All guests share the kernel's default limit of
# 128 per user, so from the sixth guest on boots would hang without a message.
_LIMITS = {
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 1048576,
}
# What is as before when the last lab goes down. With dmesg_restrict (the default of many
# distributions) nobody but root in the first user namespace reads the kernel log, so no guest's Xid
# monitor would. https://www.kernel.org/doc/html/latest/admin-guide/sysctl/kernel.html#dmesg-restrict
_FORWARD = "net/ipv4/ip_forward"
_WHILE_UP = {"kernel/dmesg_restrict": "0", _FORWARD: "1"}
# What labs of all folders know of these. It goes with a reboot, as the settings do: what they were
# before, and the processes of the labs that need them, from before a lab is up.
_NEEDED = Path("/run/kiln-lab/kernel")
_BEFORE = "before.json"
SYSCTLS = Path("/proc/sys")
INTERFACES = Path("/sys/class/net")
MACHINE_ID = Path("/etc/machine-id")
# What the limits were before: a file of labs that share a folder.
_LIMITS_BEFORE = ".limits"


def prepare(lab: Lab) -> None:
    """Raise the kernel limits that several guests need, let guests read the kernel log, and forward
    their packets.

    A limit is not lowered when a lab goes down (`lower` does it); `restore` undoes the rest.
    """
    folders.private(lab.root, lab.state)
    with locks.alone(_lock(lab.root)):
        before = _read(lab.root / _LIMITS_BEFORE)
        for name, minimum in _LIMITS.items():
            path = SYSCTLS / name
            value = path.read_text().strip()
            if int(value) < minimum:
                before.setdefault(name, value)
                path.write_text(str(minimum))
        if before:
            (lab.root / _LIMITS_BEFORE).write_text(json.dumps(before))
    _NEEDED.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locks.alone(_lock(_NEEDED)):
        _user(lab).write_text(str(os.getpid()))
        was = _read(_NEEDED / _BEFORE)
        for name, wanted in _WHILE_UP.items():
            path = SYSCTLS / name
            if path.exists() and path.read_text().strip() != wanted:
                was.setdefault(name, path.read_text().strip())
                path.write_text(wanted)
        (_NEEDED / _BEFORE).write_text(json.dumps(was))


def _lock(root: Path) -> Path:
    """One lab at a time changes the kernel's settings: others start and go down meanwhile."""
    return root / ".kernel.lock"


def _read(file: Path) -> dict[str, str]:
    """Settings and what they were before; none in a file that is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        before: dict[str, str] = json.loads(file.read_text())
        return before
    return {}


def labs_up() -> list[str]:
    """The labs of this machine that are up, whatever their folder."""
    return sorted(
        path.name for path in INTERFACES.iterdir() if re.fullmatch(r"lab[0-9]+", path.name)
    )


def lower(root: Path) -> list[str]:
    """Give the kernel the limits that it had before the first lab below `root`; what was lowered.

    One that somebody else has set since is left alone.
    """
    lowered = []
    with locks.alone(_lock(root)):
        for name, value in _read(root / _LIMITS_BEFORE).items():
            path = SYSCTLS / name
            if name in _LIMITS and path.read_text().strip() == str(_LIMITS[name]):
                path.write_text(value)
                lowered.append(f"kernel setting {name.replace('/', '.')}, {value} again")
        (root / _LIMITS_BEFORE).unlink(missing_ok=True)
    return lowered


def restore(lab: Lab) -> None:
    """Close the kernel log and stop forwarding, if a lab began it and no other lab runs.

    Forwarding stays while there is another bridge: Docker and the like started since rely on it.
    """
    if not _NEEDED.is_dir():
        return
    with locks.alone(_lock(_NEEDED)):
        _user(lab).unlink(missing_ok=True)
        if any(map(_runs, _NEEDED.glob("*.pid"))):
            return
        for name, value in _read(_NEEDED / _BEFORE).items():
            if name in _WHILE_UP and not (name == _FORWARD and list(INTERFACES.glob("*/bridge"))):
                (SYSCTLS / name).write_text(value)
        (_NEEDED / _BEFORE).unlink(missing_ok=True)


def _user(lab: Lab) -> Path:
    folder = hashlib.sha256(str(lab.root).encode()).hexdigest()[:8]
    return _NEEDED / f"{lab.bridge}-{folder}.pid"


def _runs(pid_file: Path) -> bool:
    try:
        return Path("/proc", pid_file.read_text().strip() or "none").exists()
    except OSError:
        return False


def can_map_owners(lab: Lab) -> None:
    """Check, with an empty disk, that guests can have a user namespace.

    Raises operation_failed, with what this machine lacks.
    """
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=lab.instances) as probe:
        for name in ("layer/usr/lib/systemd", "layer/etc", "upper", "work", "root", "mounts"):
            Path(probe, name).mkdir(parents=True)
        Path(probe, "layer/usr/lib/systemd/systemd").touch()
        first = lab.first_id(lab.gateway)
        done = subprocess.run(
            [
                *namespace.program(first, probe, [f"{probe}/layer"]),
                *("sh", "-c", 'echo > "$1/made" && stat -c %u "$1/usr"', "sh", f"{probe}/root"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0 or done.stdout.strip() != str(first):
        reason = done.stderr.strip().removeprefix("lab: ") or "the owners of files are not mapped"
        found = run(
            "findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(lab.root), check=False
        )
        raise operation_failed(
            f"this machine cannot give guests a user namespace: {reason}",
            hint=_help(os.uname().release, found.strip(), container=_is_container()),
        )


def _is_container() -> bool:
    marks = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    return any(Path(mark).exists() for mark in marks)


def _help(kernel: str, filesystem: str, *, container: bool) -> str:
    """Return the remedy on this machine where a guest's disk cannot be mounted."""
    if tuple(map(int, re.findall(r"[0-9]+", kernel)[:2])) < (5, 19):
        return f"the lab needs Linux 5.19 or newer, and this is {kernel}"
    if filesystem not in ("ext4", "xfs", "btrfs"):
        volume = ", in a container to a volume (docker run -v kiln-lab:/var/lib/kiln-lab)"
        return (
            f"the lab's folder is on {filesystem}, and it needs ext4, xfs or btrfs: set "
            f"KILN_LAB_STATE to another disk{volume if container else ''}"
        )
    if container:
        return "a container needs more rights for it: docker run --privileged"
    return "build in AWS (--target aws)"


def probe(lab: Lab) -> None:
    """Check in the first second what would fail minutes later: disks, the bridge, the network, the
    port.

    Raises operation_failed with the one that is missing, and with what helps here.
    """
    require_id()
    folders.private(lab.root, lab.instances)
    can_map_owners(lab)
    if shutil.which("ip"):  # otherwise it is installed next
        bridge.require_free_network(lab)
        _require_bridge(lab)


def _require_bridge(lab: Lab) -> None:
    name = f"{lab.bridge}probe"
    try:
        run("ip", "link", "add", name, "type", "bridge")
    except CommandError as error:
        raise operation_failed(
            f"this machine cannot make a bridge for guests: {error}",
            hint="in a container: run it privileged (docker run --privileged); otherwise load the "
            "module: modprobe bridge",
        ) from None
    run("ip", "link", "delete", name, check=False)


def require_id() -> None:
    """Check that this machine has an id, of which systemd-nspawn makes addresses for guests.

    A machine gets one at its first boot, and a container that never booted may have none. Raises
    operation_failed without one.
    """
    with contextlib.suppress(OSError):
        if re.fullmatch(r"[0-9a-f]{32}", MACHINE_ID.read_text().strip()):
            return
    raise operation_failed(
        f"{MACHINE_ID} holds no id, of which systemd-nspawn makes guests' network addresses",
        hint="systemd-machine-id-setup writes one",
    )


def can_run() -> None:
    """Check that this machine can run guests.

    Raises operation_failed with what is missing and what works without it.
    """
    missing = None
    if not sys.platform.startswith("linux"):
        missing = f"Linux (this is {sys.platform})"
    elif os.geteuid() != 0:
        missing = "root (it makes namespaces, mounts and a bridge): run it with sudo"
    elif not Path("/proc/self/ns/net").exists() or not Path("/proc/self/ns/pid").exists():
        missing = "network and process namespaces in the kernel"
    elif "overlay" not in Path("/proc/filesystems").read_text() and not _loads("overlay"):
        missing = "the overlay filesystem in the kernel"
    if missing:
        raise operation_failed(
            f"the lab cannot run here: it needs {missing}",
            hint="these work without it: list, check, render, validate, and building in AWS "
            "(--target aws)",
        )


def _loads(module: str) -> bool:
    return subprocess.run(["modprobe", module], capture_output=True, check=False).returncode == 0
