"""DCGM: packages of the recipe's version, and the host engine on machines with a GPU."""

import re

import pytest
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
