"""The image on its own kernel, as in AWS: what a lab guest that shares the host's cannot show."""

import re

import pytest
from applies import only_if
from expectations import recorded
from harness import collector, run_python

pytestmark = [
    pytest.mark.boot,
    pytest.mark.exercise,
    only_if(lambda expect: expect.get("own_kernel") or expect.get("target") == "aws"),
]

# Times are those of the lab's machine: what runs at a boot in AWS is not the image's alone.
timed = only_if(lambda expect: expect.get("own_kernel"))

# What modprobe says of a module that fits the kernel, on a machine without its device.
NO_DEVICE = "No such device"
UNITS = {"min": 60.0, "s": 1.0, "ms": 0.001, "us": 0.000001, "h": 3600.0}


@pytest.fixture(scope="module")
def own(host, machine, expect, version_info):
    """What collect.py's own_kernel() finds; `machine` was looked at before."""
    if machine["boot"]["container"]:
        # No instance of EC2 is a container, but a lab's may stand in for one.
        assert not expect["own_kernel"], "a container has no kernel of its own"
        pytest.skip("a lab guest has no kernel of its own")
    return run_python(host, collector(), own_kernel=version_info["kernel"]["boots"])


def seconds(text):
    """1min 2.345s → 62.345."""
    parts = re.findall(r"([\d.]+)(min|ms|us|s|h)\b", text)
    assert parts, f"{text!r} is not a time of systemd-analyze"
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def allowed(expect, own, budget):
    """Seconds that something of `budget` seconds on EC2 may take on this machine."""
    kernel = re.search(r"Startup finished in .*?([\d.a-z ]+) \(kernel\)", own["time"])
    assert kernel, f"systemd-analyze says: {own['time'].strip()}"
    slower = max(1.0, seconds(kernel.group(1)) / expect["boot_budget"]["kernel"])
    # By how much an emulated processor is slower changes while it boots, with what else runs there.
    return budget * slower * (2 if own["emulated"] else 1)


def waits_for_gpus(machine, unit):
    """Whether the unit talks to GPUs: NVIDIA publishes no time that its driver takes for them."""
    ours = unit.startswith(("nvidia-", "kiln-gpu-", "kiln-mig"))
    return ours and "nvidia" in machine["modules_loaded"]


def times(own):
    """Unit → seconds that it took at boot."""
    assert own["blame"].strip(), "systemd-analyze names no unit"
    return {line.split()[-1]: seconds(line) for line in own["blame"].splitlines()}


def test_the_root_is_the_one_that_fstab_names(own):
    assert own["root"].startswith("/dev/"), f"/ is mounted from {own['root']}"
    assert own["root_in_fstab"] == own["root"]


def test_the_root_is_the_one_that_the_boot_loader_names(own):
    assert own["root"], "the root's device was not seen"
    assert own["root_of_loader"] == own["root"], own["cmdline"]


def test_the_boot_loader_started_the_kernel_of_the_image(own, version_info):
    kernel = version_info["kernel"]["boots"]
    assert f"/vmlinuz-{kernel}" in own["cmdline"].split()[0]


def test_every_module_that_was_built_loads_or_finds_no_device(own, expect, version_info):
    by_design = expect["boot_budget"]["refuse"]
    built = [name for name in own["loads"] if name not in ("ib_umad", "efa")]
    driver = recorded(version_info, "nvidia-driver")
    assert built, f"no module was built on the image, whose driver is {driver['version']}"
    refused = {
        name: own["loads"][name]["out"].strip()
        for name in built
        if own["loads"][name]["rc"]
        and not own["loads"][name]["out"]
        .strip()
        .endswith(
            (NO_DEVICE, *(kind["says"] for end, kind in by_design.items() if name.endswith(end)))
        )
    }
    assert refused == {}


@pytest.mark.parametrize("name", ["ib_umad", "efa"])
def test_the_modules_of_the_fabric_load(own, recipe, name):
    if name not in own["known"] and not recipe["efa"]:
        pytest.skip(f"the distribution's kernel has no {name}, and the image no EFA")
    assert own["loads"][name]["rc"] == 0, own["loads"][name]["out"].strip()


def test_the_kernel_log_is_the_machines_own(own, version_info):
    kernel = version_info["kernel"]["boots"]
    assert f"Linux version {kernel} " in own["log"], own["log"][:200]


def test_the_kernel_log_names_no_module_that_does_not_fit(own):
    assert own["log"], "the kernel log was not read"
    wrong = r"Unknown symbol|disagrees about version|Invalid module|version magic|Key was rejected"
    assert [line for line in own["log"].splitlines() if re.search(wrong, line)] == []


@timed
def test_no_unit_takes_longer_at_boot_than_its_budget(machine, expect, own):
    budget = expect["boot_budget"]
    late = {}
    for unit, took in times(own).items():
        # Devices and the disk are not the image's.
        if not unit.endswith(".service") or waits_for_gpus(machine, unit):
            continue
        may = allowed(expect, own, budget["units"].get(unit, {}).get("seconds", budget["unit"]))
        if took > may:
            late[unit] = f"{took:.1f} s, of {may:.1f}"
    assert late == {}


@timed
def test_the_boot_takes_no_longer_than_its_budget(machine, expect, own):
    userspace = re.search(r"\+ ([\d.a-z ]+) \(userspace\)", own["time"])
    assert userspace, f"systemd-analyze says: {own['time'].strip()}"
    limit = allowed(expect, own, expect["boot_budget"]["userspace"])
    gpus = sum(took for unit, took in times(own).items() if waits_for_gpus(machine, unit))
    took = seconds(userspace.group(1)) - gpus
    assert took <= limit, (
        f"{own['time'].strip()}; {limit:.0f} s and {gpus:.0f} for GPUs are allowed"
    )
