"""The stand-ins beside nvidia-smi: daemons that hold devices, and the lab's own handle."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.unit.lab.standin_guest import Guest, until

pytestmark = pytest.mark.slow
Make = Callable[..., Guest]


@contextmanager
def forked(guest: Guest, program: str, pid_file: str) -> Iterator[None]:
    """The daemon, started as systemd starts one of Type=forking, and stopped again."""
    output = guest.run(program)
    assert output.code == 0, output
    path = guest.root / pid_file
    pid = int(path.read_text())  # there as soon as the parent has left
    try:
        yield
    finally:
        os.kill(pid, signal.SIGTERM)
        until(lambda: not path.exists())


def field(guest: Guest, name: str) -> str:
    return guest.ok(f"--query-gpu={name}", "--format=csv,noheader", "-i", "0").strip()


PERSISTENCED = "run/nvidia-persistenced/nvidia-persistenced.pid"
FABRIC_MANAGER = "run/nvidia-fabricmanager/nv-fabricmanager.pid"


def test_persistence_mode_lasts_as_long_as_persistenced(make: Make) -> None:
    guest = make("g5.xlarge")
    with forked(guest, "nvidia-persistenced", PERSISTENCED):
        assert field(guest, "persistence_mode") == "Enabled"
    assert field(guest, "persistence_mode") == "Disabled"


def test_persistenced_stops_a_reset_of_an_ampere_card(make: Make) -> None:
    guest = make("p4d.24xlarge")
    with forked(guest, "nvidia-persistenced", PERSISTENCED):
        assert "In use by another client" in guest.ok("-i", "0", "-mig", "1")
        assert guest.smi("-r").code == 255
        assert field(guest, "mig.mode.current") == "Disabled"
    assert guest.smi("-r").code == 0
    assert field(guest, "mig.mode.current") == "Enabled"


def test_the_fabric_is_ready_only_while_fabric_manager_runs(make: Make) -> None:
    guest = make("p5.48xlarge")
    assert field(guest, "fabric.state") == "In Progress"
    with forked(guest, "nv-fabricmanager", FABRIC_MANAGER):
        assert field(guest, "fabric.state") == "Completed"
    assert field(guest, "fabric.state") == "In Progress"


def test_the_driver_unloads_unless_in_use(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.ok("-i", "0", "-mig", "1")
    with guest.work(0):
        output = guest.run("kiln-lab-gpu", "unload")
    assert output.code == 1 and "in use" in output.err
    assert field(guest, "mig.mode.current") == "Enabled"
    assert guest.run("kiln-lab-gpu", "unload").code == 0
    assert field(guest, "mig.mode.current") == "Disabled"
