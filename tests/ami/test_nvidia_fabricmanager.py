"""Fabric manager: exactly the driver's version, running only on machines with NVSwitch."""

import re

import pytest
from applies import only_if, recipe_has
from expectations import (
    assert_active,
    assert_enabled,
    assert_held,
    assert_not_started,
    assert_packages_at,
    assert_seen,
    csv_rows,
    recorded,
    unlinked_pairs,
)

NVLSM = "/opt/nvidia/nvlsm/sbin/nvlsm"


@pytest.mark.bake
def test_its_version_is_the_drivers(machine, recipe):
    answer = machine["commands"]["nv-fabricmanager"]
    assert answer["rc"] == 0, answer["out"].strip()
    result = re.search(r"\d+(\.\d+)+", answer["out"])
    assert result, f"no version in {answer['out']!r}"
    assert result.group() == recipe["driver"]


@pytest.mark.bake
def test_it_is_enabled(machine):
    assert_enabled(machine, "nvidia-fabricmanager.service")


@pytest.mark.boot
def test_it_runs_exactly_where_there_is_nvswitch(machine, expect):
    if expect["gpu"] and expect["gpu"]["nvswitch"]:
        assert_active(machine, "nvidia-fabricmanager.service")
    else:
        assert_not_started(machine, "nvidia-fabricmanager.service")


@pytest.mark.boot
def test_every_gpu_is_registered_with_the_fabric(machine, gpu):
    if not gpu["nvswitch"] or "A100" in gpu["name"]:
        pytest.skip(f"{gpu['name']} registers with no fabric here")
    states = {row[0]: row[1:] for row in csv_rows(machine, "gpu-fabric")}
    wrong = {index: state for index, state in states.items() if state != ["Completed", "Success"]}
    assert wrong == {}, "see `journalctl -u nvidia-fabricmanager`"


@only_if(lambda expect: not expect["recipe"].get("mig_config"))  # a GPU in MIG mode has no NVLink
@pytest.mark.boot
def test_nvlink_connects_every_pair_of_gpus(machine, gpu):
    if not gpu["nvswitch"]:
        pytest.skip("this instance type has no NVSwitch")
    answer = machine["commands"]["gpu-topology"]
    assert answer["rc"] == 0, answer["out"].strip()
    assert unlinked_pairs(answer["out"], gpu["count"]) == [], (
        "see `journalctl -u nvidia-fabricmanager` and `nvidia-smi nvlink -s`"
    )


@only_if(lambda expect: not expect["recipe"].get("mig_config"))  # a GPU in MIG mode has no NVLink
@pytest.mark.boot
def test_every_nvlink_is_active(machine, gpu):
    if not gpu["nvswitch"]:
        pytest.skip("this instance type has no NVSwitch")
    answer = machine["commands"]["gpu-nvlink"]
    assert answer["rc"] == 0, answer["out"].strip()
    assert answer["out"].count(" GB/s") >= gpu["count"], "nvidia-smi nvlink -s shows no link"
    down = [line.strip() for line in answer["out"].splitlines() if "inactive" in line.lower()]
    assert down == [], "see `journalctl -u nvidia-fabricmanager`"


@recipe_has("nvlsm")
@pytest.mark.bake
def test_nvlsm_is_of_the_recipes_version(machine, recipe, version_info):
    names = recorded(version_info, "nvidia-fabricmanager").get("nvlsm", [])
    assert_packages_at(machine, names, recipe["nvlsm"])
    assert_held(machine, names)


@recipe_has("nvlsm")
@pytest.mark.bake
def test_nvlsm_is_where_fabric_manager_starts_it(machine):
    program = machine["files"][NVLSM]
    assert program, f"{NVLSM} is missing"
    assert int(program["mode"], 8) & 0o111, f"{NVLSM} cannot be run"


@recipe_has("nvlsm")
@pytest.mark.bake
def test_the_kernel_that_boots_has_and_loads_ib_umad(machine):
    answer = machine["commands"]["ib_umad"]
    assert answer["rc"] == 0, f"ib_umad is missing: {answer['out'].strip()}"
    lines = (machine["text"]["/etc/modules-load.d/kiln-nvlsm.conf"] or "").splitlines()
    assert "ib_umad" in lines, "nothing loads ib_umad at boot"


@recipe_has("nvlsm")
@pytest.mark.bake
def test_kernel_that_boots_has_the_switch_adapters_driver(machine):
    answer = machine["commands"]["mlx5_ib"]
    assert answer["rc"] == 0, f"mlx5_ib is missing: {answer['out'].strip()}"


@recipe_has("nvlsm")
@pytest.mark.boot
def test_nvlsm_runs_exactly_where_there_is_a_switch_for_it(machine, expect):
    assert_seen(machine, "programs")
    wanted = bool(expect["gpu"] and expect["gpu"].get("nvlsm"))
    assert (NVLSM in machine["programs"]) == wanted


@pytest.mark.bake
def test_nothing_upgrades_it_by_itself(machine, version_info):
    record = recorded(version_info, "nvidia-fabricmanager")
    if "archive" in record:
        packages = [p["name"] for p in machine["now"]["packages"]]
        assert packages, "no package was seen"
        strays = [name for name in packages if name.startswith("nvidia-fabricmanager")]
        assert strays == [], "packages beside the archive's fabric manager"
    else:
        assert_held(machine, record["held"])
