"""NCCL of the recipe's version, built for its CUDA."""

import pytest
from expectations import assert_held, assert_packages_at, recorded

pytestmark = pytest.mark.bake


def test_the_packages_are_of_that_version_and_cuda(machine, recipe, version_info):
    build = "cuda" + ".".join(recipe["cuda"].split(".")[:2])
    assert_packages_at(machine, recorded(version_info, "nccl")["packages"], recipe["nccl"], build)


def test_the_loader_finds_it(machine):
    assert machine["now"]["paths"].get("libnccl"), "libnccl.so.2 is not in the loader's cache"


def test_the_packages_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "nccl")["held"])
