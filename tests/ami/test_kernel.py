"""The kernel that boots, its headers, and that neither is upgraded automatically."""

import re

import pytest
from applies import recipe_has
from expectations import assert_held, packages, recorded

pytestmark = pytest.mark.bake


def test_the_kernel_that_boots_is_installed_with_its_headers(machine, version_info):
    kernel = version_info["kernel"]["boots"]
    assert machine["files"][f"/boot/vmlinuz-{kernel}"], f"/boot/vmlinuz-{kernel} is missing"
    headers = (f"/lib/modules/{kernel}/build", f"/usr/src/kernels/{kernel}")
    assert any(machine["files"][path] for path in headers), f"no headers for {kernel}"


@recipe_has("kernel")
def test_a_pinned_kernel_is_the_one_that_boots(machine, recipe, version_info):
    assert packages(machine, re.split(r"[ =]", recipe["kernel"])[0])
    assert machine["text"]["/etc/kiln/kernel"].strip() == version_info["kernel"]["boots"]


def test_kernel_and_headers_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "kernel")["held"])


def test_every_dkms_module_is_installed(machine):
    answer = machine["commands"]["dkms"]
    lines = answer["out"].strip().splitlines()
    assert answer["rc"] == 0, answer["out"].strip()
    assert lines, "dkms lists no module"
    wrong = [line for line in lines if ": installed" not in line]
    assert wrong == [], "not built for its kernel: see /var/lib/dkms/*/*/build/make.log"


def test_dkms_builds_nothing_at_boot(machine):
    facts = machine["units"].get("dkms.service", {})
    assert facts.get("LoadState"), "systemd does not say what dkms.service is"
    assert facts["UnitFileState"] not in ("enabled", "enabled-runtime"), (
        "mask dkms.service: it compiles at boot, before the network"
    )
