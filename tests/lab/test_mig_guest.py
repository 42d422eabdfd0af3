"""gpu-mig on a booted machine, through its systemd unit: labels, reboots, kills, refusals.

The guest is booted straight from the lab's base; its nvidia-smi is the lab's stand-in. All GPUs of
the shipped map take turns in one guest. One GPU of each architecture is brought to each of its
labels, with what takes longer (verify, a second apply, reboots); the others to one.
KILN_MIG_PAIRS=all does it on all GPUs with every label, and changes from every label to every other
one, as tests/unit/test_mig_properties.py does it without a guest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import guests
import pytest
from mig_guest import GPUS, MAP, Layout, Machine, kind_of, lay_down, layouts, machine_of

pytestmark = guests.AS_ROOT
ALL = os.environ.get("KILN_MIG_PAIRS") == "all"
ONE_OF_EACH = GPUS if ALL else ["A100-40GB", "H100-80GB", "B200-180GB"]


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


class TwoGpus(Machine):
    """A machine that shows two of its GPUs: what applies to them applies to the others too."""

    hidden = () if ALL else tuple(range(2, 8))


def hidden_of(gpu: str) -> tuple[int, ...]:
    """Those not shown: that two GPUs get the same layout is tried on one model of each kind."""
    return () if ALL else tuple(range(2 if gpu in ONE_OF_EACH else 1, 8))


def tried(gpu: str) -> dict[str, Layout]:
    """The labels that the unit makes: all, or the one with the most kinds of slices of a model on
    which tests/unit/test_mig_properties.py tries all of them."""
    labels = layouts(gpu)
    if ALL or gpu in (*ONE_OF_EACH, "GB200-189GB"):
        return labels
    name = max(labels, key=lambda label: (len(labels[label][1]), labels[label][0]))
    return {name: labels[name]}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A p4d.24xlarge, not booted yet."""
    with guests.made(TwoGpus, tmp_path) as guest:
        lay_down(guest)
        yield guest


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One that runs, for the tests in which every GPU takes its turn."""
    with guests.made(TwoGpus, tmp_path_factory.mktemp("mig")) as guest:
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
    tried_here = {label for gpu in GPUS for label in layouts(gpu)}
    assert set(json.loads(MAP.read_text())["mig-configs"]) <= tried_here


@pytest.mark.parametrize("gpu", GPUS)
def test_every_label_is_made_by_the_unit_verified_and_made_once(running, gpu):
    running.hidden = hidden_of(gpu)
    running.gpus(machine_of(gpu))
    for label, layout in tried(gpu).items():
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
    running.hidden = hidden_of(gpu)
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


def test_unit_restarted_by_hand_reboots_no_machine(machine):
    machine.boot()
    machine.settings(MIG_CONFIG="all-balanced")
    machine.faults(reset_supported=False)
    machine.run("systemctl", "restart", "kiln-mig", check=False)
    assert machine.unit("ActiveState") == ["failed"]
    assert "reboot the instance" in machine.run("journalctl", "-u", "kiln-mig", "-b")
    assert machine.boots == 1


def test_a_reboot_that_does_not_help_is_not_repeated(machine):
    machine.settings(MIG_CONFIG="all-balanced")
    machine.faults(reset_supported=False)
    # Each boot finds the card as from the factory: the mode never sticks.
    machine.write(
        "/etc/systemd/system/forget.service",
        "[Unit]\nBefore=kiln-mig.service\n[Service]\nType=oneshot\n"
        "ExecStart=/bin/rm -rf /var/lib/kiln-lab/nvidia-smi\n",
    )
    wants = machine.root / "etc/systemd/system/multi-user.target.wants"
    (wants / "forget.service").symlink_to("/etc/systemd/system/forget.service")
    machine.boot()
    assert machine.boots == 2
    assert machine.unit("ActiveState", "Result") == ["failed", "exit-code"]
    assert "already been rebooted for this" in machine.run("journalctl", "-u", "kiln-mig", "-b")
    assert machine.unit("ActiveState", of="kubelet.service") == ["failed"]
    assert "the MIG layout is not as configured" in machine.run("journalctl", "-b", "-u", "kubelet")


@pytest.mark.parametrize(("block", "kubelet"), [("yes", "inactive"), ("no", "active")])
def test_a_failed_layout_fails_the_unit_and_joins_only_if_allowed(machine, block, kubelet):
    machine.settings(MIG_CONFIG="all-1g.10bg", MIG_BLOCK_JOIN=block)
    machine.boot()
    assert machine.unit("ActiveState") == ["failed"]
    (state,) = machine.unit("ActiveState", of="kubelet.service")
    assert (state == "active") == (kubelet == "active")
    assert "did you mean 'all-1g.10gb'" in machine.run("journalctl", "-u", "kiln-mig", "-b")


def test_killed_after_any_command_the_next_boot_ends_as_wanted(machine):
    """After the first, the middle and the last command; with KILN_MIG_PAIRS=all after each, as
    tests/unit/test_mig_apply.py does it without a guest."""
    machine.boot()
    machine.run("gpu-mig", "apply", "all-balanced")
    machine.changes()
    answer = machine.run("sh", "-c", "gpu-mig apply all-3g.20gb --json 2>/dev/null")
    commands = len(json.loads(answer)["commands"])
    assert commands > 4
    machine.settings(MIG_CONFIG="all-3g.20gb")
    for n in range(1, commands + 1) if ALL else (1, commands // 2, commands):
        machine.run("gpu-mig", "apply", "all-balanced")
        machine.faults(rules=[{"match": [], "nth": n, "after": True, "kill_parent": True}])
        machine.run("systemctl", "restart", "kiln-mig.service", check=False)
        assert machine.unit("Result") == ["signal"], f"command {n}"
        machine.faults()
        machine.reboot()
        assert machine.verify()["ok"] is True, f"command {n}"
