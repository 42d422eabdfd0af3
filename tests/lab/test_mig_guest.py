"""gpu-mig on a booted machine, through its systemd unit: labels, reboots, kills, refusals.

The guest is booted straight from the lab's base; its nvidia-smi is the lab's stand-in.
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
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import facts
from kiln.mig import check_label
from kiln.paths import RUNTIME
from kiln.runtime_import import load
from lab import bases
from lab.guest import REBOOT, leader_of
from lab.standins.nvidia_smi import install

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="guests take root"),
    pytest.mark.beside,
]
LABELS = load("gpu_mig.config").load(str(RUNTIME / "etc/kiln/mig-config.yaml"))
SHIPPED = (
    "opt/kiln/lib/gpu_mig",
    "usr/local/bin/gpu-mig",
    "etc/default/gpu-mig",
    "etc/kiln/mig-config.yaml",
    "etc/kiln/mig-config.d",
    "etc/systemd/system/aws-gpu-mig.service",
    "etc/systemd/system/kubelet.service.d/20-gpu-mig.conf",
)
KUBELET = """[Unit]
Description=Test double of kubelet
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
ON_EC2 = {m.gpu: m.type for m in facts.instances().values() if m.mig and m.gpu_count > 1}


class Machine:
    """A guest that comes up again when it reboots itself; `boots` counts."""

    def __init__(self, home: Path) -> None:
        self.home, self.root, self.boots = home, home / "root", 0
        self.nspawn: subprocess.Popen[bytes] | None = None
        self.leader = 0

    def boot(self) -> None:
        """Boots and waits until systemd has nothing left to start, over reboots of its own."""
        while True:
            self.boots += 1
            assert self.boots < 8, "the guest reboots for ever"
            with (self.home / "console.log").open("ab") as console:
                self.nspawn = subprocess.Popen(
                    [
                        "systemd-nspawn", f"--directory={self.root}", "--boot", "--register=no",
                        f"--machine=mig-{uuid.uuid4().hex[:8]}", "--settings=no",
                        "--link-journal=no", "--resolv-conf=off", "--timezone=off",
                        "--console=passive", "--private-network", "--keep-unit",
                    ],
                    stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                    start_new_session=True,
                )  # fmt: skip
            if self._settled():
                return

    def _settled(self) -> bool:
        """True when the boot is over, False when the guest asked for a reboot instead."""
        assert self.nspawn
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            status = self.nspawn.poll()
            if status is not None:
                assert status == REBOOT, (self.home / "console.log").read_text()[-2000:]
                return False
            self.leader = leader_of(self.nspawn.pid) or 0
            if self.leader and self.run("systemctl", "is-system-running", check=False).strip() in (
                "running",
                "degraded",
            ):
                # A reboot may be on its way although the boot is over.
                jobs = self.run("systemctl", "list-jobs", "--no-legend", check=False)
                if "reboot" not in jobs:
                    return True
            time.sleep(0.1)
        jobs = self.run("systemctl", "list-jobs", check=False)
        raise AssertionError(f"the guest did not boot in 90 s; it still waits for\n{jobs}")

    def reboot(self) -> None:
        self.run("systemctl", "reboot", check=False)
        assert self.nspawn
        assert self.nspawn.wait(60) == REBOOT
        self.boot()

    def off(self) -> None:
        """Pulls the plug. PID 1 outlives a killed nspawn; the other way round both go."""
        leader = leader_of(self.nspawn.pid) if self.nspawn and self.nspawn.poll() is None else None
        if leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, signal.SIGKILL)
        if self.nspawn:
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

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def settings(self, **values: str) -> None:
        lines = {"MIG_IMDS": "no", **values}
        self.write("/etc/default/gpu-mig", "".join(f"{k}={v}\n" for k, v in lines.items()))

    def gpus(self, instance_type: str) -> None:
        """Other GPUs from here on, as they come from the factory."""
        self.write(
            "/etc/kiln-lab/instance.json",
            json.dumps({"instance_type": instance_type, "instance_id": "i-0guest"}),
        )
        if self.leader:
            self.run("rm", "-rf", "/run/kiln-lab/nvidia-smi")
        shutil.rmtree(self.root / "var/lib/kiln-lab/nvidia-smi", ignore_errors=True)

    def faults(self, **values: object) -> None:
        self.write("/etc/kiln-lab/nvidia-smi-faults.json", json.dumps(values))

    def restart(self) -> None:
        """The unit once more, as at boot; fails the test when it fails, with what it said."""
        said = "systemctl restart aws-gpu-mig || { journalctl -u aws-gpu-mig -n 20; exit 1; }"
        self.run("sh", "-c", said)

    def unit(self, *names: str, of: str = "aws-gpu-mig.service") -> list[str]:
        said = self.run("systemctl", "show", of, *[f"-p{n}" for n in names])
        found = dict(line.split("=", 1) for line in said.splitlines())
        return [found[n] for n in names]

    def changes(self) -> int:
        """How many changing nvidia-smi commands ran since the last call."""
        log = "/run/kiln-lab/nvidia-smi.log"  # none while nothing was asked
        lines = self.run("sh", "-c", f"[ ! -e {log} ] || {{ cat {log}; : > {log}; }}").splitlines()
        return sum(json.loads(line)["changes"] for line in lines)

    def verify(self) -> dict:
        return json.loads(self.run("gpu-mig", "verify", "--json"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A p4d.24xlarge with the unit enabled and a kubelet, not booted yet."""
    guest = Machine(tmp_path)
    for folder in ("root", "upper", "work"):
        (tmp_path / folder).mkdir()
    layers = (
        f"lowerdir={bases.ensure('debian12')},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    )
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, guest.root], check=True)
    try:
        install.lay_down(guest.root)
        guest.write("/var/lib/kiln-lab/driver.json", '{"version": "580.105.08", "cuda": "13.0"}')
        (guest.root / "etc/cloud").mkdir(exist_ok=True)
        (guest.root / "etc/cloud/cloud-init.disabled").touch()  # nobody answers it here
        for name in SHIPPED:
            source, target = RUNTIME / name, guest.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        guest.write("/etc/systemd/system/kubelet.service", KUBELET)
        # A test starts it more often than systemd takes for sane.
        guest.write(
            "/etc/systemd/system/aws-gpu-mig.service.d/test.conf",
            "[Unit]\nStartLimitBurst=100000\n",
        )
        wants = guest.root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        for unit in ("aws-gpu-mig.service", "kubelet.service"):
            (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
        guest.gpus("p4d.24xlarge")
        guest.settings()
        yield guest
    finally:
        guest.off()
        subprocess.run(["umount", "-l", guest.root], check=True)


def test_the_boot_makes_the_slices_before_kubelet_starts(machine):
    machine.settings(MIG_CONFIG="all-balanced")
    machine.boot()
    assert machine.unit("ActiveState", "SubState") == ["active", "exited"]
    assert machine.verify()["ok"] is True
    (done,) = machine.unit("ExecMainExitTimestampMonotonic")
    (started,) = machine.unit("ExecMainStartTimestampMonotonic", of="kubelet.service")
    assert int(done) < int(started)


@pytest.mark.parametrize("instance_type", ["p4d.24xlarge", "p5.48xlarge"])
def test_slices_are_there_again_after_a_reboot(machine, instance_type):
    machine.gpus(instance_type)
    machine.settings(MIG_CONFIG="all-balanced")
    machine.boot()
    machine.settings(MIG_CONFIG="none")
    machine.reboot()
    state = json.loads(machine.run("gpu-mig", "verify", "all-balanced", "--json", check=False))
    assert {len(g["instances"]) for g in state["gpus"]} == {0}  # no GPU keeps its instances
    assert {g["mode"]["current"] for g in state["gpus"]} == {instance_type.startswith("p4d")}
    machine.settings(MIG_CONFIG="all-balanced")
    machine.reboot()
    assert machine.verify()["ok"] is True


def test_every_label_of_every_gpu_is_made_by_the_unit_and_made_once(machine):
    machine.boot()
    for gpu, instance_type in sorted(ON_EC2.items()):
        machine.gpus(instance_type)
        fitting = [n for n in sorted(LABELS) if not check_label(n, [instance_type])]
        assert len(fitting) >= 2, gpu
        for label in fitting:
            machine.settings(MIG_CONFIG=label)
            machine.restart()
            assert machine.verify()["ok"] is True, f"{label} on {gpu}"
            machine.changes()
            machine.restart()
            assert machine.changes() == 0, f"{label} on {gpu}: a second apply changed something"


def test_from_every_label_to_every_other_one_through_the_unit(machine):
    machine.boot()
    fitting = [n for n in sorted(LABELS) if not check_label(n, ["p4d.24xlarge"])]
    for i, here in enumerate(fitting):  # here and there, and back again
        for label in [here, *(stop for there in fitting[i + 1 :] for stop in (there, here))]:
            machine.settings(MIG_CONFIG=label)
            machine.restart()
            assert machine.verify()["ok"] is True, f"{label}, near {here}"


def test_nothing_to_do_changes_nothing_at_boot(machine):
    for instance_type, label in (("p4d.24xlarge", ""), ("g5.xlarge", "all-balanced")):
        machine.gpus(instance_type)
        machine.settings(MIG_CONFIG=label)
        if not machine.leader:
            machine.boot()
        machine.restart()
        assert machine.unit("ActiveState", "Result") == ["active", "success"]
        assert machine.changes() == 0


def test_a_gpu_that_cannot_be_reset_costs_one_reboot(machine):
    machine.settings(MIG_CONFIG="all-balanced")
    machine.faults(reset_supported=False)
    machine.boot()
    assert machine.boots == 2
    assert machine.verify()["ok"] is True
    assert machine.unit("ActiveState", of="kubelet.service") == ["active"]


def test_a_reboot_that_does_not_help_is_not_repeated(machine):
    machine.settings(MIG_CONFIG="all-balanced")
    machine.faults(reset_supported=False)
    # Each boot finds the card as from the factory: the mode never sticks.
    machine.write(
        "/etc/systemd/system/forget.service",
        "[Unit]\nBefore=aws-gpu-mig.service\n[Service]\nType=oneshot\n"
        "ExecStart=/bin/rm -rf /var/lib/kiln-lab/nvidia-smi\n",
    )
    wants = machine.root / "etc/systemd/system/multi-user.target.wants"
    (wants / "forget.service").symlink_to("/etc/systemd/system/forget.service")
    machine.boot()
    assert machine.boots == 2
    assert machine.unit("ActiveState", "Result") == ["failed", "exit-code"]
    assert "rebooted for this once already" in machine.run("journalctl", "-u", "aws-gpu-mig", "-b")


@pytest.mark.parametrize(("block", "kubelet"), [("yes", "inactive"), ("no", "active")])
def test_a_failed_layout_fails_the_unit_and_joins_only_if_allowed(machine, block, kubelet):
    machine.settings(MIG_CONFIG="all-1g.10bg", MIG_BLOCK_JOIN=block)
    machine.boot()
    assert machine.unit("ActiveState") == ["failed"]
    (state,) = machine.unit("ActiveState", of="kubelet.service")
    assert (state == "active") == (kubelet == "active")
    assert "did you mean 'all-1g.10gb'" in machine.run("journalctl", "-u", "aws-gpu-mig", "-b")


def test_killed_after_any_command_the_next_boot_ends_as_wanted(machine):
    machine.boot()
    machine.run("gpu-mig", "apply", "all-balanced")
    machine.changes()
    answer = machine.run("sh", "-c", "gpu-mig apply all-3g.20gb --json 2>/dev/null")
    commands = len(json.loads(answer)["commands"])
    machine.settings(MIG_CONFIG="all-3g.20gb")
    for n in range(1, commands + 1):
        machine.boots = 0
        machine.run("gpu-mig", "apply", "all-balanced")
        machine.faults(rules=[{"match": [], "nth": n, "after": True, "kill_parent": True}])
        machine.run("systemctl", "restart", "aws-gpu-mig.service", check=False)
        assert machine.unit("Result") == ["signal"], f"command {n}"
        (machine.root / "etc/kiln-lab/nvidia-smi-faults.json").unlink()
        machine.reboot()
        assert machine.verify()["ok"] is True, f"command {n}"
