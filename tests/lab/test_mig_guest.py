"""gpu-mig on a booted machine, through its systemd unit: labels, reboots, kills, refusals.

The guest is booted straight from the lab's base; its nvidia-smi is the lab's stand-in. All GPUs of
the shipped map take turns in one guest, and every one is brought to each of its labels. What takes
longer is done on one GPU of each architecture (verify, a second apply, reboots). KILN_MIG_PAIRS=all
does it on all GPUs with every label, and changes from every label to every other one, as
tests/unit/test_mig_properties.py does it without a guest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guests
import pytest
import yaml

from kiln.base.paths import RUNTIME
from kiln.base.runtime_import import runtime_module
from kiln.mig.profiles import gpu_types
from lab.standins.nvidia_smi import install

pytestmark = [guests.AS_ROOT, pytest.mark.beside]
target = runtime_module("gpu_mig.target")
MAP = RUNTIME / "etc/kiln/mig-config.yaml"
SHOWN = install.compose()["machines"]
ALL = os.environ.get("KILN_MIG_PAIRS") == "all"
GPUS = sorted(gpu for gpu, model in SHOWN["models"].items() if "mig_facts" in model)
ONE_OF_EACH = GPUS if ALL else ["A100-40GB", "H100-80GB", "B200-180GB"]
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


Layout = tuple[bool, tuple[tuple[str, int], ...]]  # MIG mode; how many of which profile


def machine_of(gpu: str) -> str:
    """The smallest instance type with several GPUs of this model, or else with a single GPU."""
    sizes = {n: len(m["bus"]) for n, m in SHOWN["machines"].items() if m["gpu"] == gpu}
    return min(sizes, key=lambda name: (sizes[name] == 1, sizes[name], name))


def kind_of(gpu: str) -> Any:
    """gpu-mig's facts about the GPU, by its driver's names of the profiles."""
    model = SHOWN["models"][gpu]
    known = next(k for k in gpu_types().values() if f"0x{model['pci']}" in k.pci_device_ids)
    names = [profile["profile"] for profile in model["mig_facts"]["profiles"]]
    pairs = zip(names, known.profiles.values(), strict=True)
    return known._replace(profiles={name: p._replace(name=name) for name, p in pairs})


def layouts(gpu: str) -> dict[str, Layout]:
    """The labels of the map that this GPU supports."""
    kind, device_id = kind_of(gpu), f"0x{SHOWN['models'][gpu]['pci']}"
    result = {}
    for label, entries in yaml.safe_load(MAP.read_text())["mig-configs"].items():
        mine = [e for e in entries if device_id in e.get("device-filter", [device_id])]
        if not mine:
            continue
        slices = sorted(mine[-1].get("mig-devices", {}).items())
        wanted = target.Wanted(0, mine[-1]["mig-enabled"], target.shape_all(slices))
        if not target.misfit(wanted, kind):
            result[label] = (wanted.mode, tuple(slices))
    return result


def every_change(names: list[str]) -> list[str]:
    """The shortest sequence that goes from every name to every other: each pair once."""
    left = {here: [name for name in names if name != here] for here in names}
    at, walk = [names[0]], []
    while at:
        if left[at[-1]]:
            at.append(left[at[-1]].pop())
        else:
            walk.append(at.pop())
    return walk[::-1]


class Machine(guests.Guest):
    """A guest with gpu-mig's unit, whose GPUs can be replaced."""

    def settings(self, **values: str) -> None:
        lines = {"MIG_IMDS": "no", **values}
        self.write("/etc/default/gpu-mig", "".join(f"{k}={v}\n" for k, v in lines.items()))

    def gpus(self, instance_type: str) -> None:
        """Replace the GPUs by others in their factory state."""
        self.write(
            "/etc/kiln-lab/instance.json",
            json.dumps({"instance_type": instance_type, "instance_id": "i-0guest"}),
        )
        self.faults()
        shutil.rmtree(self.run_dir / "nvidia-smi", ignore_errors=True)
        shutil.rmtree(self.root / "var/lib/kiln-lab/nvidia-smi", ignore_errors=True)

    @property
    def run_dir(self) -> Path:
        """The stand-in's folder on the guest's /run, seen from outside."""
        return Path(f"/proc/{self.leader}/root/run/kiln-lab")

    def faults(self, **values: object) -> None:
        """What the stand-in does wrong. It hides all GPUs but two, to which the same applies."""
        hidden = {} if ALL else {"hide": list(range(2, 8))}
        self.write("/etc/kiln-lab/nvidia-smi-faults.json", json.dumps({**hidden, **values}))

    def restart(self) -> None:
        """Run the unit again, as at boot; fails the test with its log when it fails."""
        try:
            self.run("systemctl", "restart", "aws-gpu-mig")
        except AssertionError as error:
            output = self.run("journalctl", "-u", "aws-gpu-mig", "-n", "20", check=False)
            raise AssertionError(f"{error}\n{output}") from error

    def apply(self, label: str) -> None:
        """Apply the label through the unit."""
        self.settings(MIG_CONFIG=label)
        self.restart()

    def unit(self, *names: str, of: str = "aws-gpu-mig.service") -> list[str]:
        output = self.run("systemctl", "show", of, *[f"-p{n}" for n in names])
        result = dict(line.split("=", 1) for line in output.splitlines())
        return [result[n] for n in names]

    def changes(self) -> list[list[str]]:
        """The changing nvidia-smi commands since the last call."""
        log = self.run_dir / "nvidia-smi.log"
        if not log.exists():  # nothing was asked
            return []
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text("")
        return [line["argv"] for line in lines if line["changes"]]

    def verify(self) -> dict[str, Any]:
        return json.loads(self.run("gpu-mig", "verify", "--json"))

    def state(self) -> set[Layout]:
        """The layouts that its GPUs have as the stand-in keeps them; gpu-mig is not asked.

        An instance is counted under its profile when one compute instance fills it.
        """
        kept = self.run_dir / "nvidia-smi/state.json"
        # Without the file nothing was changed since the boot, or the factory.
        text = kept.read_text() if kept.exists() else self.run("kiln-lab-gpu", "show")
        result = set()
        for gpu in json.loads(text).values():
            assert gpu["mig"] == gpu["mig_pending"]
            slices = Counter(
                i["profile"] if [c["name"] for c in i["cis"]] == [whole(i["profile"])] else str(i)
                for i in gpu["instances"]
            )
            result.add((gpu["mig"], tuple(sorted(slices.items()))))
        return result


def whole(profile: str) -> str:
    """What the driver calls the compute instance that fills a GPU instance: without attribute."""
    return profile.split("+", maxsplit=1)[0].removesuffix("-me")


def lay_down(guest: Machine) -> None:
    """A p4d.24xlarge with the unit enabled and a kubelet."""
    install.lay_down(guest.root)
    guest.write("/var/lib/kiln-lab/driver.json", '{"version": "580.105.08", "cuda": "13.0"}')
    for name in SHIPPED:
        source, target = RUNTIME / name, guest.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    guest.write("/etc/systemd/system/kubelet.service", KUBELET)
    # The tests start it more often than systemd's start limit allows.
    guest.write(
        "/etc/systemd/system/aws-gpu-mig.service.d/test.conf",
        "[Unit]\nStartLimitIntervalSec=0\n",
    )
    wants = guest.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for unit in ("aws-gpu-mig.service", "kubelet.service"):
        (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
    guest.gpus("p4d.24xlarge")
    guest.settings()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A p4d.24xlarge, not booted yet."""
    with guests.made(Machine, tmp_path) as guest:
        lay_down(guest)
        yield guest


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One that runs, for the tests in which every GPU takes its turn."""
    with guests.made(Machine, tmp_path_factory.mktemp("mig")) as guest:
        lay_down(guest)
        guest.boot()
        yield guest


def test_the_boot_makes_the_slices_before_kubelet_starts(machine):
    machine.settings(MIG_CONFIG="all-balanced")
    machine.boot()
    assert machine.unit("ActiveState", "SubState") == ["active", "exited"]
    assert machine.verify()["ok"] is True
    (done,) = machine.unit("ExecMainExitTimestampMonotonic")
    (started,) = machine.unit("ExecMainStartTimestampMonotonic", of="kubelet.service")
    assert int(done) < int(started)


def test_every_label_of_the_map_is_for_a_gpu_that_is_tried_here():
    assert set(yaml.safe_load(MAP.read_text())["mig-configs"]) == {
        label for gpu in GPUS for label in layouts(gpu)
    }


@pytest.mark.parametrize("gpu", GPUS)
def test_every_label_is_made_by_the_unit_verified_and_made_once(running, gpu):
    running.gpus(machine_of(gpu))
    for label, layout in layouts(gpu).items():
        running.apply(label)
        assert running.state() == {layout}, label
        if gpu in ONE_OF_EACH:
            assert running.verify()["ok"] is True, label
            running.changes()
            running.restart()
            assert running.changes() == [], f"{label}: a second apply changed something"


if ALL:

    @pytest.mark.parametrize("gpu", GPUS)
    def test_every_label_is_reached_from_every_other_one(running, gpu):
        running.gpus(machine_of(gpu))
        wanted = layouts(gpu)
        before = "the factory"
        for label in every_change(list(wanted)):
            running.apply(label)
            assert running.state() == {wanted[label]}, f"{label} after {before}"
            before = label


@pytest.mark.parametrize("gpu", ONE_OF_EACH)
def test_after_a_reboot_what_the_gpus_forgot_is_made_again(running, gpu):
    """Instances are lost on every GPU; the mode persists only on Ampere."""
    running.gpus(machine_of(gpu))
    wanted = layouts(gpu)
    forgets_mode = kind_of(gpu).arch != "ampere"
    for label in wanted if ALL else ["all-balanced", "all-enabled"]:
        mode, slices = wanted[label]
        running.apply(label)
        running.reboot()
        assert running.state() == {wanted[label]}, label
        commands = running.changes()
        assert any("-mig" in c for c in commands) == (mode and forgets_mode), label
        assert any("-cgi" in c for c in commands) == bool(slices), label


def test_nothing_to_do_changes_nothing_at_boot(machine):
    for instance_type, label in (("p4d.24xlarge", ""), ("g5.xlarge", "all-balanced")):
        machine.gpus(instance_type)
        machine.settings(MIG_CONFIG=label)
        if not machine.leader:
            machine.boot()
        machine.restart()
        assert machine.unit("ActiveState", "Result") == ["active", "success"]
        assert machine.changes() == []


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
    assert "already been rebooted for this" in machine.run("journalctl", "-u", "aws-gpu-mig", "-b")


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
        machine.run("gpu-mig", "apply", "all-balanced")
        machine.faults(rules=[{"match": [], "nth": n, "after": True, "kill_parent": True}])
        machine.run("systemctl", "restart", "aws-gpu-mig.service", check=False)
        assert machine.unit("Result") == ["signal"], f"command {n}"
        machine.faults()
        machine.reboot()
        assert machine.verify()["ok"] is True, f"command {n}"
