"""The CUDA toolkit of the recipe's release, available to compiler, loader and shell."""

import re

import pytest
from expectations import assert_held, assert_packages_at, recorded

pytestmark = pytest.mark.bake


def series(recipe):
    return ".".join(recipe["cuda"].split(".")[:2])


def test_the_packages_are_of_that_release(machine, recipe, version_info):
    assert_packages_at(machine, recorded(version_info, "cuda")["packages"], recipe["cuda"])


def test_the_packages_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "cuda")["held"])


def test_usr_local_cuda_leads_to_it(machine, recipe):
    assert machine["files"]["/usr/local/cuda"], "/usr/local/cuda is missing"
    assert machine["now"]["paths"]["cuda"] == f"/usr/local/cuda-{series(recipe)}"


def test_nvcc_is_of_that_release(machine, recipe):
    answer = machine["commands"]["nvcc"]
    assert answer["rc"] == 0, answer["out"].strip()
    result = re.search(r"release ([\d.]+),", answer["out"])
    assert result, f"no release in {answer['out']!r}"
    assert result.group(1) == series(recipe)


def test_the_loader_searches_it(machine):
    assert (
        machine["text"]["/etc/ld.so.conf.d/kiln-cuda.conf"] or ""
    ).strip() == "/usr/local/cuda/lib64"


def test_a_login_shell_finds_nvcc(machine):
    assert machine["commands"]["login-nvcc"]["out"].strip() == "/usr/local/cuda/bin/nvcc"
