"""The driver: module, libraries and tools of one version, loaded for the GPUs of this machine."""

import json
import re

import pytest
from applies import only_if
from expectations import (
    assert_active,
    assert_enabled,
    assert_held,
    assert_seen,
    csv_rows,
    kept_modules,
    kind_of,
    modules_in_place,
    nvidia_smi,
    recorded,
)

# Tools of the driver that Debian releases by themselves.
TOOLS = ("nvidia-modprobe", "nvidia-persistenced", "nvidia-settings", "nvidia-xconfig")


def driver_modules(machine):
    names = ("nvidia", "nvidia-current")  # the latter is Debian's
    return [m for m in modules_in_place(machine) if m["name"] in names]


both_modules = only_if(lambda expect: expect["recipe"].get("kernel_module") == "both")


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
def test_the_kernel_module_is_the_one_the_recipe_asks_for(machine, recipe):
    modules = driver_modules(machine)
    assert modules, "there is no nvidia module"
    wanted = {"both": ("open", "proprietary")}.get(
        recipe["kernel_module"], (recipe["kernel_module"],)
    )
    assert kind_of(modules[0]) in wanted


@both_modules
@pytest.mark.bake
def test_both_kernel_modules_fit_the_kernel_that_boots(machine, recipe):
    kernel = machine["baked"]["kernel"]["boots"]
    result = {
        name: [m for m in kept_modules(machine, name) if m["name"] in ("nvidia", "nvidia-current")]
        for name in ("open", "proprietary")
    }
    for name, modules in result.items():
        assert len(modules) == 1, f"{len(modules)} {name} drivers are kept"
        assert kind_of(modules[0]) == name, f"what is kept as {name} is {kind_of(modules[0])}"
        assert modules[0]["version"] == recipe["driver"], name
        assert modules[0]["vermagic"].split()[0] == kernel, name


@both_modules
@pytest.mark.bake
def test_one_kernel_module_can_take_the_others_place(machine):
    names = [{m["name"] for m in kept_modules(machine, name)} for name in ("open", "proprietary")]
    assert names[0], "no open driver is kept"
    assert names[0] == names[1]
    assert {m["name"] for m in modules_in_place(machine)} >= names[0]


@both_modules
@pytest.mark.bake
def test_the_kernel_module_is_chosen_before_anything_loads_it(machine):
    assert_enabled(machine, "kiln-gpu-select.service")
    assert "blacklist nvidia" in (machine["text"]["/etc/modprobe.d/kiln-gpu-select.conf"] or "")


@both_modules
@pytest.mark.boot
def test_the_kernel_module_in_place_is_the_one_for_these_gpus(machine, gpu):
    assert_active(machine, "kiln-gpu-select.service")
    modules = driver_modules(machine)
    assert modules, "there is no nvidia module"
    assert kind_of(modules[0]) == gpu["prefers"]


@both_modules
@pytest.mark.boot
def test_the_driver_has_the_options_for_these_gpus(machine, gpu):
    if not gpu["module_options"]:
        pytest.skip("these GPUs need no options of the driver")
    written = (machine["text"]["/run/modprobe.d/kiln-gpu.conf"] or "").splitlines()
    assert "options nvidia " + " ".join(gpu["module_options"]) in written
    # No driver runs in the lab.
    has = machine["text"]["/proc/driver/nvidia/params"]
    for option in gpu["module_options"] if has is not None else ():
        name, _, value = option.removeprefix("NVreg_").partition("=")
        assert f"{name}: {value}" in has.splitlines()


@both_modules
@pytest.mark.boot
def test_all_modules_in_place_are_of_that_kind(machine, gpu):
    kept = {m["name"]: m["srcversion"] for m in kept_modules(machine, gpu["prefers"])}
    assert kept, f"no {gpu['prefers']} module is kept"
    now = {m["name"]: m["srcversion"] for m in modules_in_place(machine) if m["name"] in kept}
    assert now == kept


@pytest.mark.bake
def test_the_libraries_are_of_the_drivers_version(machine, recipe):
    for library in ("libcuda", "libnvidia-ml"):
        result = machine["now"]["paths"].get(library, [])
        assert result, f"the loader does not find {library}"
        for path in result:
            assert path.endswith("." + recipe["driver"]), f"{path} is not {recipe['driver']}"


@pytest.mark.bake
def test_every_driver_package_has_the_drivers_version(machine, recipe):
    if recipe["driver_source"] == "runfile":
        pytest.skip("a .run installation has no packages")
    found = {
        p["name"]: p["version"]
        for p in machine["now"]["packages"]
        if re.match(r"(lib|kmod-)?nvidia|cuda-drivers|libcuda1$", p["name"])
        # Of all that NVIDIA names so, only the driver's versions begin with its branch.
        and re.fullmatch(r"\d{3}\.\d+(\.\d+)?", p["version"])
        and p["name"] not in TOOLS
    }
    assert found, "no package has a driver's version"
    other = {name: v for name, v in found.items() if v != recipe["driver"]}
    assert other == {}, f"not {recipe['driver']}: pin and hold them with the driver"


@pytest.mark.boot
def test_the_loaded_module_is_the_installed_one(machine, gpu):
    if machine["boot"]["container"]:
        pytest.skip("a lab guest loads no modules")
    loaded = [
        (machine["text"][f"/sys/module/nvidia/{name}"] or "").strip()
        for name in ("version", "srcversion")
    ]
    assert any(loaded), "the module nvidia is not loaded: see dmesg"
    installed = [[m["version"], m["srcversion"]] for m in driver_modules(machine)]
    assert [loaded] == installed, "reboot, or unload the old module"


@pytest.mark.bake
def test_nothing_upgrades_the_driver_by_itself(machine, recipe, version_info):
    record = recorded(version_info, "nvidia-driver")
    if recipe["driver_source"] == "runfile":
        names = [p["name"] for p in machine["now"]["packages"]]
        assert names, "no package was seen"
        strays = [name for name in names if name.startswith("nvidia-driver")]
        assert strays == [], "driver packages beside a .run installation"
    else:
        assert_held(machine, record["held"])


@pytest.mark.bake
def test_nouveau_is_kept_away(machine):
    assert "blacklist nouveau" in (machine["text"]["/etc/modprobe.d/kiln-nouveau.conf"] or "")


@pytest.mark.boot
def test_nouveau_is_not_loaded(machine):
    if machine["boot"]["container"]:
        pytest.skip("a lab guest loads no modules")
    assert_seen(machine, "modules_loaded")
    assert "nouveau" not in machine["modules_loaded"]


@pytest.mark.bake
def test_persistenced_starts_at_boot(machine):
    assert_enabled(machine, "nvidia-persistenced.service")


@pytest.mark.boot
def test_persistenced_runs_where_there_is_a_gpu(machine, gpu):
    assert_active(machine, "nvidia-persistenced.service")


@pytest.mark.boot
def test_every_gpu_is_in_persistence_mode(machine, gpu):
    assert {row["persistence_mode"] for row in nvidia_smi(machine)} == {"Enabled"}


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


@pytest.mark.boot
def test_ecc_is_as_configured_and_counted_no_error(machine, gpu):
    for index, current, pending, errors, retired, *_ in csv_rows(machine, "gpu-health"):
        assert current == pending, f"GPU {index}: ECC {pending} waits for a reboot"
        assert errors in ("0", "[N/A]"), f"GPU {index}: {errors} uncorrected: replace the instance"
        assert retired != "Yes", f"GPU {index}: pages wait to be retired: reset the GPU"


YES = ("Yes", "1")  # older drivers print numbers


@pytest.mark.boot
def test_no_row_remap_is_pending_or_failed(machine, gpu):
    for bus, pending, failure in csv_rows(machine, "gpu-rows"):
        assert failure not in YES, f"{bus}: row remapping failed: replace the instance"
        assert pending not in YES, f"{bus}: a row waits to be remapped: reset the GPU"


@pytest.mark.boot
def test_no_gpu_is_throttled(machine, gpu):
    rows = csv_rows(machine, "gpu-health")
    slowed = [row[0] for row in rows if "Active" in row[5:]]
    assert slowed == [], "slowed by heat or power, see `nvidia-smi -q -d PERFORMANCE`"
