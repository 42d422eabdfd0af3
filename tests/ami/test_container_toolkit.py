"""The container toolkit, and its registration with the image's container runtimes."""

import pytest
from expectations import assert_held, assert_packages_at, recorded

pytestmark = pytest.mark.bake


def test_the_packages_are_of_that_version(machine, recipe, version_info):
    record = recorded(version_info, "container-toolkit")
    assert_packages_at(machine, record["packages"], recipe["container_toolkit"])


def test_the_packages_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "container-toolkit")["held"])


def test_nvidia_ctk_answers_with_that_version(machine, recipe):
    answer = machine["commands"]["nvidia-ctk"]
    assert answer["rc"] == 0, answer["out"].strip()
    assert recipe["container_toolkit"] in answer["out"]


def test_the_image_has_no_retired_repository(machine):
    for path, text in machine["text"].items():
        assert "nvidia.github.io/nvidia-docker" not in (text or ""), f"{path} is retired"


def test_every_runtime_on_the_image_knows_it(machine, version_info):
    runtimes = recorded(version_info, "container-toolkit").get("runtimes", [])
    if not runtimes:
        pytest.skip("there is no container runtime on this image")
    files = {"docker": "/etc/docker/daemon.json", "containerd": "/etc/containerd/config.toml"}
    for runtime in runtimes:
        assert "nvidia-container-runtime" in (machine["text"][files[runtime]] or ""), runtime
