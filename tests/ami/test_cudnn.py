"""cuDNN of the recipe's version, for its CUDA."""

import pytest
from expectations import assert_held, assert_packages_at, packages, recorded, version

pytestmark = pytest.mark.bake


def test_the_packages_are_of_that_version(machine, recipe, version_info):
    assert_packages_at(machine, recorded(version_info, "cudnn")["packages"], recipe["cudnn"])


def test_it_was_built_for_that_cuda_major(machine, recipe, version_info):
    major = recipe["cuda"].split(".")[0]
    names = recorded(version_info, "cudnn")["packages"]
    assert names, "the provisioner recorded no package"
    for name in names:
        result = packages(machine, name)[0]
        built = f"cuda-{major}" in name or f"cuda{major}." in result["release"]
        assert built, f"{name} {result['release']} is not for CUDA {major}"


def test_the_loader_finds_it(machine, recipe):
    major = version(recipe["cudnn"])[0]
    result = machine["now"]["paths"].get("libcudnn", [])
    assert any(f".so.{major}" in path for path in result), f"libcudnn.so.{major} is not in {result}"


def test_the_packages_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "cudnn")["held"])
