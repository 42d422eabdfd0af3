"""A booted guest with the Xid monitor on it as the provisioner installs it: what tests share.

The guest is the lab's debian12 base with this checkout's runtime/ on it and the host's real
/dev/kmsg, which all guests share: every test's lines carry the guest's own marker.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kiln.paths import RUNTIME
from lab import bases
from lab.guest import REBOOT, leader_of

NEEDS = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/kmsg", os.R_OK | os.W_OK),
    reason="guests take root, and the test writes to the real /dev/kmsg",
)
UNITS = (
    "aws-hw-monitor.service",
    "gpu-xid-hooks.path",
    "gpu-xid-hooks.service",
    "gpu-health.service",
)
SHIPPED = (
    "opt/kiln/lib/gpu_xid",
    "usr/local/bin/gpu-xid",
    "etc/kiln/gpu-xid.json",
    *(f"etc/systemd/system/{unit}" for unit in UNITS),
)
LOG = "/var/log/gpuevent.log"
UNIT = "aws-hw-monitor.service"
# systemd-nspawn gives a guest a boot id of its own by a mount over /proc, which a unit with
# mounts of its own does not get to see: it would see the host's, the same after each reboot.
BOOT_ID = """[Unit]
DefaultDependencies=no
Before=aws-hw-monitor.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/cp /proc/sys/kernel/random/boot_id /opt/boot_id
[Install]
WantedBy=multi-user.target
"""
SEES_BOOT_ID = "[Service]\nBindReadOnlyPaths=/opt/boot_id:/proc/sys/kernel/random/boot_id\n"


def whole_lines(text: str) -> list[str]:
    """The lines of a log that is being written: the last one may be half there as yet."""
    return text.rpartition("\n")[0].splitlines()


class Guest:
    """A booted machine with the monitor's unit enabled."""

    def __init__(self, home: Path) -> None:
        self.home, self.root, self.leader = home, home / "root", 0
        self.marker = uuid.uuid4().hex[:12]
        self.nspawn: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        with (self.home / "console.log").open("ab") as console:
            self.nspawn = subprocess.Popen(
                [
                    "systemd-nspawn", f"--directory={self.root}", "--boot", "--register=no",
                    f"--machine=xid-{uuid.uuid4().hex[:8]}", "--settings=no", "--link-journal=no",
                    "--resolv-conf=off", "--timezone=off", "--console=passive", "--keep-unit",
                    "--private-network", "--bind=/dev/kmsg", "--capability=CAP_SYSLOG",
                ],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
            )  # fmt: skip
        assert self.until(self.settled, 60), (self.home / "console.log").read_text()[-2000:]

    def settled(self) -> bool:
        assert self.nspawn
        self.leader = leader_of(self.nspawn.pid) or 0
        return bool(self.leader) and self.run(
            "systemctl", "is-system-running", check=False
        ).strip() in ("running", "degraded")

    def reboot(self) -> None:
        self.run("systemctl", "reboot", check=False)
        assert self.nspawn
        assert self.nspawn.wait(60) == REBOOT
        self.boot()

    def off(self) -> None:
        if self.nspawn and self.nspawn.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader_of(self.nspawn.pid) or self.nspawn.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.nspawn.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.nspawn.pid, signal.SIGKILL)
            self.nspawn.wait()

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--all", "--", "env", "-i",
             "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def until(self, condition: Any, seconds: float = 10) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def xid(self, first: int, last: int, code: int = 31) -> None:
        """Xid lines with pids first..last, written to /dev/kmsg from inside the guest."""
        line = f"NVRM: Xid (PCI:0000:00:1e.0): {code}, pid=$n, name=t, Ch 1 {self.marker}"
        loop = f'for n in $(seq {first} {last}); do echo "{line}" > /dev/kmsg; done'
        self.run("bash", "-c", loop)

    def mine(self) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in whole_lines(self.read(LOG))]
        return [row for row in rows if self.marker in row.get("raw", "")]

    def read(self, path: str) -> str:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else ""

    def pids(self) -> Counter[int]:
        return Counter(row["pid"] for row in self.mine())

    def show(self, name: str, unit: str = UNIT) -> str:
        return self.run("systemctl", "show", unit, f"-p{name}", "--value").strip()


@contextlib.contextmanager
def booted(home: Path) -> Iterator[Guest]:
    """A guest in `home`, gone when the block ends."""
    found = Guest(home)
    for folder in ("root", "upper", "work"):
        (home / folder).mkdir()
    layers = f"lowerdir={bases.ensure('debian12')},upperdir={home}/upper,workdir={home}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, found.root], check=True)
    try:
        install(found.root)
        found.boot()
        yield found
    finally:
        found.off()
        subprocess.run(["umount", "-l", found.root], check=False)


def install(root: Path) -> None:
    """What the provisioner does: copy runtime/, compile, enable."""
    (root / "etc/cloud").mkdir(exist_ok=True)
    (root / "etc/cloud/cloud-init.disabled").touch()  # nobody answers it here
    for name in SHIPPED:
        source, target = RUNTIME / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=skip)
        else:
            shutil.copy2(source, target)
    subprocess.run(
        ["chroot", root, "python3", "-m", "compileall", "-q", "/opt/kiln/lib/gpu_xid"], check=True
    )
    (root / "etc/systemd/system/boot-id.service").write_text(BOOT_ID)
    dropins = root / f"etc/systemd/system/{UNIT}.d"
    dropins.mkdir()
    (dropins / "boot-id.conf").write_text(SEES_BOOT_ID)
    subprocess.run(
        ["systemctl", f"--root={root}", "enable", UNIT, "gpu-xid-hooks.path", "boot-id"],
        check=True, capture_output=True,
    )  # fmt: skip


def from_debian(package: str, folder: Path) -> Path:
    """The files of a Debian package, unpacked below `folder`; skips where there is no mirror."""
    folder.mkdir(parents=True, exist_ok=True)
    got = subprocess.run(
        ["apt-get", "download", package], cwd=folder, capture_output=True, text=True, check=False
    )
    if got.returncode:
        pytest.skip(f"no Debian mirror gives {package}: {got.stderr.strip()[-200:]}")
    (found,) = folder.glob(f"{package}_*.deb")
    subprocess.run(["dpkg-deb", "-x", found, folder / "files"], check=True)
    return folder / "files"
