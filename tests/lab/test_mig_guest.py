"""gpu-mig on a booted machine, through its systemd unit: order, refusals.

The guest is booted straight from the lab's base; its nvidia-smi is the lab's stand-in. Layouts and
reboots: test_mig_first_boot.py. Every label of every GPU, and a kill after every command:
tests/unit/mig, without a guest.
"""

from __future__ import annotations

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


@pytest.mark.parametrize(("block", "kubelet"), [("yes", "inactive"), ("no", "active")])
def test_failed_layout_joins_only_if_allowed(machine, block, kubelet):
    machine.settings(MIG_CONFIG="all-1g.10bg", MIG_BLOCK_JOIN=block)
    machine.boot()
    assert machine.unit("ActiveState") == ["failed"]
    (state,) = machine.unit("ActiveState", of="kubelet.service")
    assert (state == "active") == (kubelet == "active")
    assert "did you mean 'all-1g.10gb'" in machine.run("journalctl", "-u", "kiln-mig", "-b")
