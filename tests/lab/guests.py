"""A machine booted directly from one of the lab's bases, without EC2; shared by tests.

A test adds to `Guest` what its own subject needs, lays its files into `root` and calls `boot`.
"""

from __future__ import annotations

import contextlib
import platform
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from lab.daemon import cell, root_shell
from lab.machine import cgroups, namespace
from lab.machine.guest import REBOOT, leader_of
from lab.machine.kmsg import KernelLog
from lab.rootfs import bases

IN_CELL = pytest.mark.skipif(not cell.is_inside(), reason="guests take the labs' cell")
UNTIL_RUNNING = ("timeout", "30", "systemctl", "is-system-running", "--wait")
_PATH = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Guest:
    """A guest and its files, seen from the host. `boots` includes reboots of its own."""

    options: ClassVar[tuple[str, ...]] = ()  # of systemd-nspawn, besides those below

    def __init__(self, home: Path, base: Path) -> None:
        self.home, self.base = home, base
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.boots = self.leader = 0  # leader: PID 1, as the host numbers it
        self.nspawn: subprocess.Popen[bytes] | None = None
        self.log = KernelLog(home / "kmsg")

    @property
    def root(self) -> Path:
        """Its files, as it sees them where it runs: nobody else sees its mounts."""
        running = self.nspawn and self.nspawn.poll() is None and self.leader
        return Path(f"/proc/{self.leader}/root") if running else self.home / "root"

    def boot(self) -> None:
        """Boot and wait until systemd has started everything, across reboots by the guest."""
        subprocess.run(["umount", "-q", self.home / "root"], check=False)
        for _ in range(7):
            self.boots += 1
            self.leader = 0
            own = ("-uid", "0", "-exec", "chown", "-h", "1:1", "{}", "+")
            subprocess.run(["find", self.home / "upper", *own], check=True)
            with (self.home / "console.log").open("ab") as console:
                self.nspawn = subprocess.Popen(
                    [
                        *cgroups.run_in(self.name), *namespace.program(self.home, self.base),
                        *namespace.NSPAWN, "--boot", "--console=passive",
                        f"--bind={namespace.HOME}/kmsg:/dev/kmsg", "--capability=CAP_SYSLOG",
                        f"--machine={self.name}", *self.options,
                    ],
                    stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                    start_new_session=True,
                )  # fmt: skip
            if self._settled():
                return
        raise AssertionError("the guest reboots for ever")

    def _settled(self) -> bool:
        """True when the boot is complete, False when the guest reboots instead."""
        assert self.nspawn
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            status = self.nspawn.poll()
            if status is not None:
                assert status == REBOOT, (self.home / "console.log").read_text()[-2000:]
                return False
            self.leader = leader_of(self.nspawn.pid) or 0
            # Asked once, it waits: each question costs as much as a small unit.
            if self.leader and self.run(*UNTIL_RUNNING, check=False).strip() in (
                "running",
                "degraded",
            ):
                # A reboot may be pending although the boot is complete.
                jobs = self.run("systemctl", "list-jobs", "--no-legend", check=False)
                if "reboot" not in jobs:
                    return True
            time.sleep(0.1)
        jobs = self.run("systemctl", "list-jobs", check=False)
        raise AssertionError(f"the guest did not boot in 180 s; it still waits for\n{jobs}")

    def reboot(self) -> None:
        self.run("systemctl", "reboot", check=False)
        assert self.nspawn
        assert self.nspawn.wait(180) == REBOOT
        self.boot()

    def off(self) -> None:
        """Kill the guest."""
        cgroups.remove(self.name)
        if self.nspawn:
            self.nspawn.wait()
        self.log.close()

    def run(self, *command: str, check: bool = True, rc: int = 0) -> str:
        """The output of a command in the guest; with `check` its exit status must be `rc`."""
        done = subprocess.run(
            [*root_shell.entering(self.leader), "env", "-i", _PATH, *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        output = f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert not check or done.returncode == rc, output
        return done.stdout + done.stderr

    def until(self, condition: Callable[[], object], seconds: float = 60) -> bool:
        """Wait until the condition holds; False on timeout."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def show(self, name: str, unit: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", unit, f"-p{name}", "--value").strip()

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def read(self, path: str) -> str:
        """A file's text, "" when there is none."""
        try:
            return (self.root / path.lstrip("/")).read_text()
        except FileNotFoundError:
            return ""


@contextlib.contextmanager
def network() -> Iterator[str]:
    """The process of a network of its own, beside the lab's."""
    command = ["unshare", "--net", "sh", "-c", "echo && exec sleep 3600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield str(process.pid)
        finally:
            process.kill()


G = TypeVar("G", bound=Guest)
# The distribution with the packages of this machine's own archive.
DISTRO = "debian12" if platform.freedesktop_os_release()["ID"] == "debian" else "ubuntu2404"


@contextlib.contextmanager
def made(kind: type[G], home: Path, distro: str = DISTRO) -> Iterator[G]:
    """A guest in `home`, not booted yet; removed when the block ends."""
    guest = kind(home, bases.ensure(distro))
    for folder in ("root", "upper", "work"):
        (home / folder).mkdir()
    layers = f"lowerdir={guest.base},upperdir={home}/upper,workdir={home}/work,userxattr"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, home / "root"], check=True)
    try:
        # There is no IMDS here, so cloud-init would wait for it.
        guest.write("/etc/cloud/cloud-init.disabled", "")
        yield guest
    finally:
        guest.off()
        subprocess.run(["umount", "-lq", home / "root"], check=False)
