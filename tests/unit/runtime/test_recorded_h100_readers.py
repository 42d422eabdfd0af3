"""What reads nvidia-smi here reads what it printed on a real H100, and the facts agree with it."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from kiln.base import paths
from kiln.base.paths import AMI_TESTS
from kiln.facts import instances
from lab.vendors.standins.cloudwatch_agent.agent import gpu as cloudwatch
from tests.unit.runtime import recorded_h100 as recorded

clocks = paths.runtime_module("gpu_boot.clocks")
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


def test_an_h200_lists_the_profiles_that_we_know() -> None:
    class Recorded(smi.Smi):  # type: ignore[misc,name-defined]  # a module of the runtime
        def run(self, *words: object) -> tuple[int, str]:
            asked = [word for word in words if word not in ("-i", "0")]
            return next(
                (a.code, a.out) for a in recorded.answers("mig", recorded.H200) if a.words == asked
            )

    gpu = smi.Gpu(0, recorded.UUID, "", "0x233510DE", "0x18BF10DE", "NVIDIA H200", False, False)
    known = facts.by_device_id(facts.load(), gpu.device_id)
    listed = Recorded().gpu_type(gpu).profiles
    assert known.name == "H200-141GB"
    assert listed == {name: p._replace(ce=None) for name, p in known.profiles.items()}


def test_the_clocks_are_the_highest_already(capsys: pytest.CaptureFixture[str]) -> None:
    assert clocks.main(["--show"], run=recorded.said) == 0
    assert capsys.readouterr().out == (
        "GPU 0 (NVIDIA H100 80GB HBM3): 2619,1980 MHz now, 2619,1980 to be set\n"
    )


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


def test_the_cloudwatch_agents_metrics_are_all_there() -> None:
    ((dimensions, values, _),) = cloudwatch.read(recorded.answer("q-x", "-q", "-x"), 0.0)
    assert dimensions == {"index": "0", "name": "NVIDIA H100 80GB HBM3", "arch": "Hopper"}
    assert values == {
        "memory_total": 81559, "memory_used": 621, "memory_free": 80459, "temperature_gpu": 43,
        "utilization_gpu": 100, "utilization_memory": 0, "pcie_link_gen_current": 5,
        "pcie_link_width_current": 16, "encoder_stats_session_count": 0,
        "encoder_stats_average_fps": 0, "encoder_stats_average_latency": 0,
        "clocks_current_graphics": 1980, "clocks_current_sm": 1980, "clocks_current_memory": 2619,
        "clocks_current_video": 1545, "power_draw": 128.33,
    }  # fmt: skip
    assert set(cloudwatch.FIELDS) - set(values) == {"fan_speed"}  # such a card has no fan


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
