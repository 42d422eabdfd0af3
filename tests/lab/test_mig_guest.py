"""gpu-mig on a booted machine, through its systemd unit: layouts, reboots, kills, refusals.

The guest is booted straight from the lab's base; its nvidia-smi is the lab's stand-in. Every label
of every GPU, and a kill after every command: tests/unit/mig, without a guest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import guests
import pytest
from mig_guest import Machine, lay_down

pytestmark = guests.IN_CELL


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A p4d.24xlarge, not booted yet."""
    with guests.made(Machine, tmp_path) as guest:
        lay_down(guest)
        yield guest


def test_the_boot_makes_the_slices_before_kubelet_starts(machine):
    machine.settings(MIG_CONFIG="all-balanced")
    machine.boot()
    assert machine.unit("ActiveState", "SubState") == ["active", "exited"]
    assert machine.verify()["ok"] is True
    (done,) = machine.unit("ExecMainExitTimestampMonotonic")
    (started,) = machine.unit("ExecMainStartTimestampMonotonic", of="kubelet.service")
    assert int(done) < int(started)


def test_unit_makes_each_layout_once_and_again_after_a_reboot(machine):
    """Instances are lost on every GPU, the mode on those that are newer than Ampere.
    test_mig_first_boot.py has a p4d.24xlarge, which keeps it."""
    machine.boot()
    machine.gpus("p6-b200.48xlarge")
    for label, layout in (
        ("all-enabled", (True, ())),
        ("all-1g.23gb", (True, (("1g.23gb", 7),))),
        ("all-disabled", (False, ())),
        ("all-1g.23gb", (True, (("1g.23gb", 7),))),
    ):
        machine.apply(label)
        assert machine.state() == {layout}, label
        assert machine.verify()["ok"] is True, label
    machine.changes()
    machine.restart()
    assert machine.changes() == [], "a second apply changed something"
    machine.reboot()
    assert machine.state() == {layout}
    commands = machine.changes()
    assert any("-mig" in c for c in commands)
    assert any("-cgi" in c for c in commands)


def test_a_gpu_that_cannot_be_reset_costs_one_reboot(machine):
    machine.settings(MIG_CONFIG="all-balanced")
    machine.faults(reset_supported=False)
    machine.boot()
    assert machine.boots == 2
    assert machine.verify()["ok"] is True
    assert machine.unit("ActiveState", of="kubelet.service") == ["active"]


@pytest.mark.parametrize(("block", "kubelet"), [("yes", "inactive"), ("no", "active")])
def test_failed_layout_joins_only_if_allowed(machine, block, kubelet):
    machine.settings(MIG_CONFIG="all-1g.10bg", MIG_BLOCK_JOIN=block)
    machine.boot()
    assert machine.unit("ActiveState") == ["failed"]
    (state,) = machine.unit("ActiveState", of="kubelet.service")
    assert (state == "active") == (kubelet == "active")
    assert "did you mean 'all-1g.10gb'" in machine.run("journalctl", "-u", "kiln-mig", "-b")


def test_killed_in_the_middle_the_next_boot_ends_as_wanted(machine):
    machine.boot()
    machine.run("gpu-mig", "apply", "all-balanced")
    machine.changes()
    answer = machine.run("sh", "-c", "gpu-mig apply all-3g.20gb --json 2>/dev/null")
    commands = len(json.loads(answer)["commands"])
    assert commands > 4
    machine.settings(MIG_CONFIG="all-3g.20gb")
    machine.run("gpu-mig", "apply", "all-balanced")
    middle = {"match": [], "nth": commands // 2, "after": True, "kill_parent": True}
    machine.faults(rules=[middle])
    machine.run("systemctl", "restart", "kiln-mig.service", check=False)
    assert machine.unit("Result") == ["signal"]
    machine.faults()
    machine.reboot()
    assert machine.verify()["ok"] is True
