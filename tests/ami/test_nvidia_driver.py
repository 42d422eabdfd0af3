"""The driver: module, libraries and tools of one version, loaded for the GPUs of this machine."""

import json

import pytest
from expectations import assert_active, assert_enabled, assert_held, nvidia_smi, recorded


def driver_modules(machine):
    kernel = machine["baked"]["kernel"]["boots"]
    names = ("nvidia", "nvidia-current")  # the latter is Debian's
    return [m for m in machine["now"]["modules"] if m["kernel"] == kernel and m["name"] in names]


@pytest.mark.bake
def test_the_module_is_there_for_the_kernel_that_boots(machine, recipe):
    modules = driver_modules(machine)
    assert len(modules) == 1, f"{len(modules)} nvidia modules for the kernel that boots"
    assert modules[0]["version"] == recipe["driver"]


@pytest.mark.bake
def test_the_module_was_built_for_that_kernel(machine, version_info):
    kernel = version_info["kernel"]["boots"]
    assert [m["vermagic"].split()[0] for m in driver_modules(machine)] == [kernel]


@pytest.mark.bake
def test_the_module_is_of_the_flavour_the_recipe_asks_for(machine, recipe):
    modules = driver_modules(machine)
    assert modules, "there is no nvidia module"
    flavour = "proprietary" if modules[0]["license"] == "NVIDIA" else "open"
    assert flavour == recipe["kernel_module"]


@pytest.mark.bake
def test_the_libraries_are_of_the_drivers_version(machine, recipe):
    for library in ("libcuda", "libnvidia-ml"):
        found = machine["now"]["paths"].get(library, [])
        assert found, f"the loader does not find {library}"
        for path in found:
            assert path.endswith("." + recipe["driver"]), f"{path} is not {recipe['driver']}"


@pytest.mark.bake
def test_nothing_upgrades_the_driver_by_itself(machine, recipe, version_info):
    record = recorded(version_info, "nvidia-driver")
    if recipe["driver_source"] == "runfile":
        assert record["runfile"].endswith(f"-{recipe['driver']}.run")
        strays = [
            p["name"] for p in machine["now"]["packages"] if p["name"].startswith("nvidia-driver")
        ]
        assert strays == [], "driver packages beside a .run installation"
    else:
        assert_held(machine, record["held"])


@pytest.mark.bake
def test_nouveau_is_kept_away(machine):
    assert "blacklist nouveau" in (machine["text"]["/etc/modprobe.d/kiln-nouveau.conf"] or "")


@pytest.mark.boot
def test_nouveau_is_not_loaded(machine):
    assert "nouveau" not in machine["modules_loaded"]


@pytest.mark.bake
def test_persistenced_starts_at_boot(machine):
    assert_enabled(machine, "nvidia-persistenced.service")


@pytest.mark.boot
def test_persistenced_runs_where_there_is_a_gpu(machine, gpu):
    assert_active(machine, "nvidia-persistenced.service")


@pytest.mark.boot
def test_nvidia_smi_shows_the_drivers_version(machine, recipe, gpu):
    assert {row["driver_version"] for row in nvidia_smi(machine)} == {recipe["driver"]}


@pytest.mark.boot
def test_nvidia_smi_shows_every_gpu_of_the_instance_type(machine, gpu):
    assert len(nvidia_smi(machine)) == gpu["count"]


@pytest.mark.boot
def test_nvidia_smi_shows_the_gpus_of_the_instance_type(machine, gpu):
    assert {row["name"] for row in nvidia_smi(machine)} == {gpu["name"]}


@pytest.mark.boot
def test_the_boot_selection_saw_every_gpu(machine, gpu):
    text = machine["text"]["/run/kiln/gpu-boot/decision.json"]
    assert text, "kiln-gpu-boot left no decision"
    assert len(json.loads(text)["gpus"]) == gpu["count"]


@pytest.mark.boot
def test_the_boot_selection_ended_well(machine):
    assert_active(machine, "kiln-gpu-boot.service")
