"""DCGM: packages of the recipe's version, and the host engine on machines with a GPU."""

import re

import pytest
from applies import only_if
from expectations import (
    assert_active,
    assert_enabled,
    assert_held,
    assert_packages_at,
    nvidia_smi,
    recorded,
)


@pytest.mark.bake
def test_the_packages_are_of_that_version(machine, recipe, version_info):
    assert_packages_at(machine, recorded(version_info, "dcgm")["packages"], recipe["dcgm"])


@pytest.mark.bake
def test_the_packages_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "dcgm")["held"])


@pytest.mark.bake
def test_the_host_engine_is_enabled(machine):
    assert_enabled(machine, "nvidia-dcgm.service")


@pytest.mark.boot
def test_the_host_engine_runs_where_there_is_a_gpu(machine, gpu):
    assert_active(machine, "nvidia-dcgm.service")


@pytest.mark.boot
def test_the_host_engine_finds_every_gpu(machine, gpu):
    answer = machine["commands"]["dcgm-discovery"]
    assert answer["rc"] == 0, answer["out"].strip()
    found = re.search(r"^(\d+) GPUs? found", answer["out"], re.MULTILINE)
    assert found, f"dcgmi discovery -l: {answer['out'].strip()}"
    assert int(found.group(1)) == len(nvidia_smi(machine)), "restart nvidia-dcgm, see its journal"


@only_if(lambda expect: not expect["recipe"].get("mig_config"))  # it needs whole GPUs
@pytest.mark.boot
@pytest.mark.exercise
def test_its_quick_diagnostic_passes(host, expect, gpu):
    if not gpu["count"]:
        pytest.skip(f"{expect['instance_type']} has a slice of a GPU")
    answer = host.run("timeout 300 dcgmi diag -r 1")
    shown = answer.stdout + answer.stderr
    # https://github.com/NVIDIA/DCGM/issues/253, #55: DCGM 4 has lines for each GPU, 3 has none.
    failed = [line for line in shown.splitlines() if re.search(r"\| (GPU\d+: )?Fail", line)]
    assert failed == [], shown[-2000:]
    assert answer.rc == 0 and re.search(r"\| Pass", shown), f"status {answer.rc}: {shown[-2000:]}"
