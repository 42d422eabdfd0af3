"""The machine behind an instance: a systemd-nspawn container that boots its own systemd."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.base.settings import Lab
from lab.machine import bridge, cgroups, disks, namespace
from lab.machine.common import DidNotStartError, has_booted, hypervisor_id
from lab.machine.kmsg import KernelLog
from lab.machine.namespace import NET_CORE

log = logging.getLogger("lab.guest")

# The exit status of systemd-nspawn --keep-unit when the guest wants to reboot.
REBOOT = 133
_LEADER_TIMEOUT = 30.0
_SIGRTMIN = 34
_POWEROFF = _SIGRTMIN + 4
_RESTART = _SIGRTMIN + 5


class _NoInitError(Exception):
    """The image cannot boot."""


@dataclass
class Guest:
    """A guest from its start to its end. `ended` is called once, when it is off for good."""

    lab: Lab
    instance_id: str
    address: str
    mac: str
    layers: list[Path]
    facts: dict[str, str]
    name: str  # EC2's private one
    ended: Callable[[], None]
    never_boots: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _off: threading.Event = field(default_factory=threading.Event, init=False)
    _killed: bool = field(default=False, init=False)
    _log: KernelLog | None = field(default=None, init=False)

    @property
    def hostname(self) -> str:
        """EC2's IP name: ip-10-201-1-2."""
        return "ip-" + self.address.replace(".", "-")

    def start(self) -> None:
        """Set up disk and network, boot, and restart the guest after each reboot.

        Raises DidNotStartError and CommandError (ip), after removing all of the guest.
        """
        home = disks.prepare(self.lab, self.instance_id, self.layers)
        lab_files = home / "lab"
        lab_files.mkdir(exist_ok=True)
        (lab_files / "instance.json").write_text(json.dumps(self.facts) + "\n")
        # cloud-init and others recognize an EC2 instance by the hypervisor's UUID, before IMDS.
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
        (home / "hypervisor").mkdir(exist_ok=True)
        (home / "hypervisor" / "uuid").write_text(hypervisor_id() + "\n")
        _kernel_settings(lab_files / "sysctl")
        etc_files = home / namespace.ETC_FILES
        etc_files.mkdir(exist_ok=True)
        (etc_files / "hosts").write_text("127.0.0.1 localhost\n")
        domain = self.name.partition(".")[2]
        (etc_files / "resolv.conf").write_text(
            f"search {domain}\nnameserver {self.lab.resolver}\noptions timeout:20\n"
        )
        try:
            self._log = KernelLog(home / "kmsg")
            self._boot()
        except _NoInitError:
            # On EC2 the kernel of such an image panics: the instance runs, and does not answer.
            self._clear()
            return
        except Exception:
            self._clear()
            raise
        threading.Thread(target=self._watch, daemon=True).start()

    def wait_until_booted(self, timeout: float) -> bool:
        """Wait until the guest answers on port 22; False after `timeout` seconds."""
        if self.never_boots:
            self._off.wait(timeout)
            return False
        return has_booted(self.address, self._off, timeout, 0.03)

    def power_off(self, timeout: float) -> None:
        """Ask systemd in the guest to shut down; kill the guest after `timeout` seconds."""
        leader = self.leader()
        if leader and not self.never_boots:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, _POWEROFF)
            self._off.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the guest and wait until it is off."""
        self._killed = True
        cgroups.remove(self._group)
        self._off.wait(5)

    def reboot(self) -> None:
        """Ask systemd in the guest to reboot."""
        leader = self.leader()
        if leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, _RESTART)

    def leader(self) -> int | None:
        """The process id on the host of the guest's PID 1; None when the guest is off."""
        process = self._process
        return leader_of(process.pid) if process and process.poll() is None else None

    @property
    def _group(self) -> str:
        return f"{self.lab.bridge}/{self.instance_id}"

    def _boot(self) -> None:
        home = disks.folder(self.lab, self.instance_id)
        command = [
            *cgroups.run_in(self._group),
            *namespace.program(home, *self.layers),
            *namespace.NSPAWN,
            "--boot",
            f"--machine={self.instance_id}",
            f"--hostname={self.hostname}",
            "--console=read-only",
            "--capability=CAP_SYSLOG",
            f"--bind={namespace.HOME / 'kmsg'}:/dev/kmsg",
            f"--bind-ro={namespace.HOME / 'lab'}:/etc/kiln-lab",
            f"--bind-ro={namespace.HOME / 'hypervisor'}:/sys/hypervisor",
        ]
        command += _limits()
        if self.never_boots:
            command += ["systemd.unit=emergency.target"]
        with (home / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        (home / "nspawn.pid").write_text(str(self._process.pid))
        deadline = time.monotonic() + _LEADER_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            leader = self.leader()
            if leader:
                bridge.attach(self.lab, self.address, self.mac, leader)
                return
            time.sleep(0.002)
        if self._process.poll() == namespace.NO_INIT:
            raise _NoInitError
        raise DidNotStartError(_last_line(home / "console.log"))

    def _watch(self) -> None:
        try:
            while self._process and self._process.wait() == REBOOT and not self._killed:
                self._boot()
        except Exception:
            log.exception("%s did not come up again", self.instance_id)
        self._clear()
        self.ended()

    def _clear(self) -> None:
        cgroups.remove(self._group)
        if self._process:
            self._process.wait()
        bridge.detach(self.lab, self.address, self.mac)
        if self._log:
            self._log.close()
        self._off.set()


def leader_of(process: int) -> int | None:
    """The process id of the guest's PID 1 below a process, which is systemd-nspawn or has started
    it; None when there is none."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                name = Path(f"/proc/{child}/comm").read_text().strip()
                if name == "systemd":
                    return int(child)
                # nspawn's own helper processes have other names.
                if name == "systemd-nspawn":
                    return leader_of(int(child))
    return None


def _kernel_settings(folder: Path) -> None:
    """Write the settings of net.core, most of which a network of its own does not show."""
    target = folder / "net" / "core"
    target.mkdir(parents=True, exist_ok=True)
    for name, text in json.loads(os.environ[NET_CORE]).items():
        (target / name).write_text(text)


def _limits() -> list[str]:
    """The options that let the guest's root raise its limits as far as the lab may.

    In a user namespace it cannot exceed those of its PID 1.
    """
    options = []
    for name, soft in (("NOFILE", 1024), ("MEMLOCK", 8 << 20)):
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        shown = "infinity" if hard == resource.RLIM_INFINITY else hard
        options.append(f"--rlimit=RLIMIT_{name}={soft if hard < 0 else min(soft, hard)}:{shown}")
    return options


def _last_line(console: Path) -> str:
    lines = console.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "systemd-nspawn ended")
