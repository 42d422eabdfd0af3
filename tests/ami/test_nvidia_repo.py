"""NVIDIA's repository is the right one, and nothing from it is installed unsigned."""

import pytest
from applies import only_if

pytestmark = pytest.mark.bake


def test_the_repository_is_the_distributions(machine, recipe):
    paths = ("/etc/apt/sources.list.d/nvidia-cuda.list", "/etc/yum.repos.d/nvidia-cuda.repo")
    text = next((machine["text"][path] for path in paths if machine["text"][path]), "")
    wanted = (
        f"https://developer.download.nvidia.com/compute/cuda/repos/{recipe['distro']['cuda_repo']}/"
    )
    assert wanted in text, f"no repository definition names {wanted}"


@only_if(lambda expect: expect["recipe"].get("distro", {}).get("id") == "al2023")
@only_if(lambda expect: {"cudnn", "nccl"} & {*expect["recipe"]["components"]})
def test_another_repository_gives_only_cudnn_and_nccl(machine):
    text = machine["text"]["/etc/yum.repos.d/nvidia-cuda-libraries.repo"] or ""
    assert "includepkgs=libcudnn* libnccl*" in text.splitlines()
    assert "gpgcheck=1" in text.splitlines()


def test_packages_are_checked_against_the_key(machine, recipe):
    if recipe["distro"]["family"] == "debian":
        text = machine["text"]["/etc/apt/sources.list.d/nvidia-cuda.list"] or ""
        assert "[signed-by=/usr/share/keyrings/nvidia-cuda.asc]" in text
        assert "trusted=yes" not in text
    else:
        text = machine["text"]["/etc/yum.repos.d/nvidia-cuda.repo"] or ""
        assert "gpgcheck=1" in text.splitlines()
        assert "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-cuda" in text
