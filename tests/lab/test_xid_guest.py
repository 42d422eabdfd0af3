"""The Xid monitor as its unit on a booted guest: events, hooks, kills, reboots, sandbox.

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

from kiln.paths import RUNTIME, RUNTIME_VARIANTS
from lab import bases
from lab.guest import REBOOT, leader_of

pytestmark = pytest.mark.skipif(
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
        rows = [json.loads(line) for line in self.read(LOG).splitlines()]
        return [row for row in rows if self.marker in row.get("raw", "")]

    def read(self, path: str) -> str:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else ""

    def pids(self) -> Counter[int]:
        return Counter(row["pid"] for row in self.mine())

    def show(self, name: str, unit: str = UNIT) -> str:
        return self.run("systemctl", "show", unit, f"-p{name}", "--value").strip()


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    home = tmp_path_factory.mktemp("xid")
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
    subprocess.run(
        ["systemctl", f"--root={root}", "enable", UNIT, "gpu-xid-hooks.path"],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_marker(guest: Guest) -> None:
    guest.marker = uuid.uuid4().hex[:12]


def test_an_xid_in_the_kernel_log_is_in_the_event_log_within_two_seconds(guest: Guest) -> None:
    assert guest.show("ActiveState") == "active"
    guest.xid(7, 7, code=79)
    assert guest.until(guest.mine, 2)
    row = guest.mine()[0]
    assert (row["xid"], row["pci"], row["pid"], row["process"]) == (79, "0000:00:1e.0", 7, "t")
    assert (row["severity"], row["injected"]) == ("fatal", True)
    assert row["raw"].startswith("NVRM: Xid (PCI:0000:00:1e.0): 79, pid=7")


def test_the_start_record_is_there_before_any_event(guest: Guest) -> None:
    first = json.loads(guest.read(LOG).splitlines()[0])
    assert first["event"] == "start"
    assert {"version", "boot_id", "driver", "gpus"} <= set(first)


def test_kill_9_and_restart_lose_and_repeat_nothing(guest: Guest) -> None:
    guest.xid(1, 50)
    before = guest.show("MainPID")
    guest.run("kill", "-9", before)
    guest.xid(51, 100)
    assert guest.until(lambda: guest.show("MainPID") not in ("0", before))
    guest.run("systemctl", "stop", UNIT)
    guest.xid(101, 150)
    guest.run("systemctl", "start", UNIT)
    assert guest.until(lambda: len(guest.mine()) >= 150)
    assert guest.pids() == Counter(range(1, 151))


def test_a_reboot_loses_and_repeats_nothing(guest: Guest) -> None:
    guest.xid(1, 30)
    assert guest.until(lambda: len(guest.mine()) == 30)
    guest.reboot()
    guest.xid(31, 60)
    assert guest.until(lambda: len(guest.mine()) >= 60)
    assert guest.pids() == Counter(range(1, 61))


def test_the_idle_monitor_is_left_alone_by_its_watchdog(guest: Guest) -> None:
    assert guest.show("Type") == "notify"
    assert guest.until(lambda: guest.show("WatchdogUSec") in ("0", "infinity"))
    restarts = guest.show("NRestarts")
    guest.xid(1, 1)
    time.sleep(1)
    assert guest.show("NRestarts") == restarts


def test_reload_takes_a_new_configuration(guest: Guest) -> None:
    before = guest.show("MainPID")
    conf = json.loads(guest.read("/etc/kiln/gpu-xid.json"))
    guest.write("/etc/kiln/gpu-xid.json", json.dumps({**conf, "severity": {"xid 32": "fatal"}}))
    guest.run("systemctl", "reload", UNIT)
    time.sleep(0.5)
    guest.xid(1, 1, code=32)
    assert guest.until(guest.mine)
    assert guest.mine()[0]["severity"] == "fatal"
    assert guest.show("MainPID") == before


def test_hooks_get_the_event_and_a_hanging_one_is_killed(guest: Guest) -> None:
    conf = {"hooks": {"severity": ["fatal"], "injected": True, "timeout_s": 1}}
    guest.write("/etc/kiln/gpu-xid.json", json.dumps(conf))
    guest.write("/etc/kiln/xid.d/10-hang", "#!/bin/sh\nsleep 60\n", 0o755)
    guest.write("/etc/kiln/xid.d/20-note", "#!/bin/sh\ncat >> /root/hooked\n", 0o755)
    guest.write("/etc/kiln/xid.d/30-off.example", "#!/bin/sh\ntouch /root/example\n", 0o755)
    guest.run("systemctl", "reload", UNIT)
    time.sleep(0.5)
    guest.xid(1, 1)
    guest.xid(2, 2, code=79)
    try:
        assert guest.until(lambda: guest.marker in guest.read("/root/hooked"), 15)
        rows = [json.loads(line) for line in guest.read("/root/hooked").splitlines()]
        assert [row["pid"] for row in rows if guest.marker in row["raw"]] == [2]
        assert guest.read("/root/example") == ""
        said = guest.run("journalctl", "-u", "gpu-xid-hooks", "--no-pager")
        assert "10-hang: killed after 1 s" in said
    finally:
        shutil.rmtree(guest.root / "etc/kiln/xid.d")


def test_the_sandbox_scores_below_three(guest: Guest) -> None:
    said = guest.run("systemd-analyze", "security", "--no-pager", UNIT)
    score = float(said.split("Overall exposure level for")[1].split(":")[1].split()[0])
    assert score < 3


def test_the_sandbox_lets_nothing_but_the_log_be_written(guest: Guest) -> None:
    pid = guest.show("MainPID")
    status = guest.run("cat", f"/proc/{pid}/status")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff"))
    assert int(effective.split()[1], 16) == 1 << 34  # CAP_SYSLOG
    mounts = guest.run("cat", f"/proc/{pid}/mounts").splitlines()
    root = next(line for line in mounts if line.split()[1] == "/")
    assert root.split()[3].split(",")[0] == "ro"


def test_the_variant_for_systemd_219_starts_too(guest: Guest) -> None:
    unit = f"etc/systemd/system/{UNIT}"
    shutil.copy2(RUNTIME_VARIANTS / "systemd-before-240" / unit, guest.root / unit)
    guest.run("systemctl", "daemon-reload")
    guest.run("systemctl", "restart", UNIT)
    guest.xid(1, 1)
    assert guest.until(guest.mine)
    assert guest.show("WatchdogUSec") == "20min"
