"""The Lustre client: modules for the kernel that boots, and the tools to mount with."""

import pytest
from expectations import assert_held, packages, recorded

pytestmark = pytest.mark.bake


def test_the_packages_are_there(machine, version_info):
    names = recorded(version_info, "lustre-client")["packages"]
    assert names, "the provisioner recorded no package"
    for name in names:
        assert packages(machine, name), f"{name} is not installed"


def test_the_packages_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "lustre-client")["held"])


def test_the_module_is_there_for_the_kernel_that_boots(machine, version_info):
    kernel = version_info["kernel"]["boots"]
    result = [
        m for m in machine["now"]["modules"] if (m["name"], m["kernel"]) == ("lustre", kernel)
    ]
    assert result, f"kernel {kernel} has no lustre module"
    assert result[0]["vermagic"].split()[0] == kernel


def test_a_file_system_can_be_mounted(machine):
    assert machine["commands"]["mount.lustre"]["rc"] == 0, "there is no mount.lustre"


def test_lfs_answers(machine):
    answer = machine["commands"]["lfs"]
    assert answer["rc"] == 0, answer["out"]
    assert answer["out"].startswith("lfs ")
