"""The stand-in's other commands: CSV queries, errors, injected faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kiln.facts import instances
from lab.vendors.standins.nvidia_smi import install
from tests import surroundings
from tests.unit.lab.standin_guest import Guest

pytestmark = pytest.mark.slow
Make = Callable[..., Guest]
# All between them run what these two run.
PYTHONS = [path for version, path in surroundings.pythons().items() if version in ("3.7", "3.13")]


@pytest.mark.parametrize(
    ("field", "driver"),
    [("cuda_version", "580.173.02"), ("fabric.state", "510.47.03")],
)
def test_a_field_the_driver_does_not_know_is_refused(make: Make, field: str, driver: str) -> None:
    output = make(driver=driver).smi(f"--query-gpu=index,{field}", "--format=csv")
    assert (output.out, output.code) == (f'Field "{field}" is not a valid field to query.\n\n', 2)


@pytest.mark.parametrize("words", ["-q -d MEMORY", "-lgc 1000", "mig -lcip", "topo -p2p r", "dmon"])
def test_what_is_not_there_is_refused_by_name(make: Make, words: str) -> None:
    output = make().smi(*words.split())
    assert output.code in (2, 255)
    assert "is not there in the lab" in output.err


def test_a_working_program_is_listed_and_a_watching_one_is_not(make: Make) -> None:
    guest = make("p5.48xlarge")
    query = ("--query-compute-apps=pid,name,used_memory", "--format=csv")
    assert guest.ok(*query) == "pid, process_name, used_gpu_memory [MiB]\n"
    guest.faults(busy=[{"gpu": 0, "name": "/opt/app/train", "pid": 77}, {"name": "nv-hostengine"}])
    assert guest.ok(*query).splitlines()[1:] == ["77, /opt/app/train, 4 MiB"]


@pytest.mark.parametrize("case", ["no driver", "not loaded", "no gpu", "unknown type"])
def test_without_driver_or_gpu_it_fails_as_the_real_one(make: Make, case: str) -> None:
    guest = make({"no gpu": "m5.large", "unknown type": "q9.huge"}.get(case, "p4d.24xlarge"))
    if case == "no driver":
        (guest.root / "var/lib/kiln-lab/driver.json").unlink()
    if case == "not loaded":
        guest.faults(driver_loaded=False)
    output = guest.smi()
    assert output.out.startswith("NVIDIA-SMI has failed because it couldn't communicate with the")
    assert output.code == 9


def test_lost_devices_leave_none_found(make: Make) -> None:
    guest = make("g5.xlarge")
    guest.faults(hide=[0])
    output = guest.smi("-L")
    assert (output.out, output.code) == ("No devices were found\n", 6)


def test_a_rule_fails_the_nth_matching_command_once(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.ok("-i", "0", "-mig", "1")
    guest.faults(rules=[{"match": ["mig", "-cgi"], "nth": 2, "exit": 23, "stdout": "boom\n"}])
    assert [guest.smi("mig", "-i", "0", "-cgi", "19").code for _ in range(3)] == [0, 23, 0]
    assert guest.ok("mig", "-lgi").count("MIG 1g") == 2


def test_a_rule_may_work_and_then_kill_the_caller(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.faults(rules=[{"match": ["-mig"], "after": True, "kill_parent": True}])
    command = [*guest.command("nvidia-smi"), "-mig", "1"]
    caller = f"import subprocess; subprocess.run({command!r}); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", caller], check=False, env=guest.env, capture_output=True, text=True
    )
    assert done.returncode == -9 and "alive" not in done.stdout
    query = ("--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv")
    assert "Enabled, Enabled" in guest.ok(*query)


def test_every_instance_type_shows_its_gpus(make: Make) -> None:
    machine: dict[str, Any] = install.compose()["machines"]
    for instance_type, facts in instances().items():
        shown = machine["machines"][instance_type]
        model = machine["models"][shown["gpu"]]
        assert len(shown["bus"]) == max(facts.gpu_count, 1), instance_type
        assert model["product"] == facts.product
        assert model["pci"].lower().startswith(facts.pci_device_ids[0])
        assert model["cc"] == facts.compute_capability
        assert ("mig_facts" in model) == facts.mig
    # A slice of an L4 is named by its memory.
    assert make("g6f.xlarge").ok("-L").startswith("GPU 0: NVIDIA L4-3Q (UUID")


@pytest.mark.skipif(not PYTHONS, reason="no other Python is installed here")
@pytest.mark.parametrize("python", PYTHONS)
def test_it_runs_on_the_guests_python(make: Make, python: str) -> None:
    guest = make("p5.48xlarge", python=python)
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "9,19", "-C")
    commands = (
        "-L", "", "-q", "-q -x", "--query-gpu=uuid --format=csv", "topo -m", "nvlink -s",
        "mig -lgip",
    )  # fmt: skip
    for command in commands:
        guest.ok(*command.split())
