"""What reads nvidia-smi here reads what it printed on a real H100, and the facts agree with it."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from kiln.base import paths
from kiln.base.paths import AMI_TESTS
from kiln.facts import instances
from tests.unit.runtime import recorded_h100 as recorded

facts = paths.runtime_module("gpu_mig.facts")
health = paths.runtime_module("gpu_xid.health")
smi = paths.runtime_module("gpu_mig.smi")


@pytest.fixture(scope="module")
def nvidia_smi(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(recorded.program(tmp_path_factory.mktemp("bin")))


def test_gpu_mig_sees_a_gpu_with_mig_off(nvidia_smi: str) -> None:
    (gpu,) = smi.Smi(nvidia_smi).gpus()
    assert (gpu.index, gpu.name, gpu.uuid) == (0, "NVIDIA H100 80GB HBM3", recorded.UUID)
    assert (gpu.bus_id, gpu.device_id) == ("00000000:00:06.0", "0x233010DE")
    assert (gpu.current, gpu.pending, gpu.capable) == (False, False, True)
    # The lists end with status 0: nobody may take the message for a row.
    assert smi.Smi(nvidia_smi)._instances() == {}


def test_the_driver_lists_the_profiles_that_we_know(nvidia_smi: str) -> None:
    client = smi.Smi(nvidia_smi)
    (gpu,) = client.gpus()
    known = facts.by_device_id(facts.load(), gpu.device_id)
    listed = client.gpu_type(gpu)
    assert known.name == "H100-80GB"
    assert listed.profiles == {name: p._replace(ce=None) for name, p in known.profiles.items()}
    assert (listed.compute_slices, listed.memory_slices) == (7, 8)
    assert listed.engines == known.engines


def test_gpu_without_nvswitch_is_healthy(nvidia_smi: str) -> None:
    assert health.query(nvidia_smi) == ([], [])


def test_the_checks_of_an_image_read_its_gpu(nvidia_smi: str) -> None:
    """As tests/ami/collect.py asks and expectations.py reads."""
    script = (
        "import harness, expectations, re\n"
        "fields = re.search('GPU_FIELDS = \"(.*)\"', harness.collector()).group(1)\n"
        "import subprocess\n"
        f"asked = [{nvidia_smi!r}, '--query-gpu=' + fields, '--format=csv,noheader,nounits']\n"
        "out = subprocess.run(asked, capture_output=True, text=True, check=True).stdout\n"
        "print(expectations.nvidia_smi({'commands': {'nvidia-smi': {'rc': 0, 'out': out}}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=AMI_TESTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ast.literal_eval(done.stdout) == [{
        "index": "0", "name": "NVIDIA H100 80GB HBM3", "uuid": recorded.UUID,
        "driver_version": recorded.DRIVER, "bus_id": "00000000:00:06.0",
        "persistence_mode": "Enabled", "mig": "Disabled",
    }], done.stderr  # fmt: skip


def test_what_we_know_of_a_p5s_gpu_is_what_the_card_says() -> None:
    said = {name: field.value for field in recorded.fields() for name in field.names}
    known = instances()["p5.4xlarge"]
    assert said["name"] == known.product
    assert said["pci.device_id"].lower() == f"0x{known.pci_device_ids[0]}10de"
    assert said["compute_cap"] == known.compute_capability
    highest = [said["clocks.max.memory"], said["clocks.max.graphics"]]
    assert highest == [f"{mhz} MHz" for mhz in known.application_clocks]
    total = int(said["memory.total"].split()[0])
    assert 0.99 < total / known.gpu_memory_mib < 1  # EC2's number is the card's, before the driver
