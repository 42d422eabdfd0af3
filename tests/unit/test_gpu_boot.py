"""kiln-gpu-boot: what an instance type's PCI devices lead to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kiln import gpu_devices
from kiln.facts import instances
from kiln.paths import RUNTIME
from lab import pci as lab_pci

sys.path.insert(0, str(RUNTIME / "opt/kiln/lib"))

from gpu_boot import act, decide, pci

FACTS = decide.known()


def decision_for(instance_type: str, tmp_path: Path) -> dict:
    lab_pci.write(instance_type, tmp_path)
    return decide.decide(pci.devices(str(tmp_path)), FACTS)


def test_the_shipped_facts_are_the_knowledge_of_the_pipeline():
    assert gpu_devices.FILE.read_text() == gpu_devices.text(), "run: python -m kiln.gpu_devices"


def test_the_labs_guests_have_the_devices_of_the_facts():
    assert lab_pci.TABLE.read_text() == lab_pci.table(), "run: python -m lab.pci"


@pytest.mark.parametrize("name", instances())
def test_every_instance_type_gets_the_services_its_hardware_needs(name: str, tmp_path: Path):
    entry = instances()[name]
    decision = decision_for(name, tmp_path)
    assert len(decision["gpus"]) == max(entry.gpu_count, 1)
    assert decision["apply"] == {
        "gpu": True,
        "nvswitch": entry.nvswitch,
        "nvlsm": entry.nvlsm,
        "imex": entry.imex,
    }
    wanted = {"required": "open", "unsupported": "proprietary", "supported": "either"}
    assert decision["module"] == wanted[entry.open_modules]


def test_a_machine_without_gpu_starts_nothing(tmp_path: Path):
    decision = decision_for("m5.large", tmp_path)
    assert decision["module"] is None
    assert not any(decision["apply"].values())
    assert act.commands(decision, "open", "6.1.0", sysfs=str(tmp_path)) == ([], None)


def test_an_unknown_gpu_gets_the_open_module():
    newer = pci.Device("0000:10:00.0", "10de", "ffff", "0302", "")
    decision = decide.decide([newer], FACTS)
    assert decision["module"] == "open"
    assert decision["gpus"][0]["name"] is None


def test_an_old_gpu_beside_a_blackwell_gpu_still_gets_the_open_module(tmp_path: Path):
    both = [
        pci.Device("0000:10:00.0", "10de", "1db5", "0302", ""),
        pci.Device("0000:11:00.0", "10de", "2901", "0302", ""),
    ]
    assert decide.decide(both, FACTS)["module"] == "open"


def test_another_vendors_display_adapter_is_no_gpu():
    vga = pci.Device("0000:00:03.0", "1d0f", "1111", "0300", "")
    assert decide.decide([vga], FACTS)["gpus"] == []


def test_the_flavour_that_was_archived_is_loaded_where_the_installed_one_does_not_fit(
    tmp_path: Path,
):
    decision = decision_for("p3dn.24xlarge", tmp_path)
    folder = tmp_path / "archive/6.1.0/proprietary"
    folder.mkdir(parents=True)
    (folder / "nvidia.ko").touch()
    loads, warning = act.commands(
        decision, "open", "6.1.0", archive=str(tmp_path / "archive"), sysfs=str(tmp_path)
    )
    assert loads[0] == ["insmod", str(folder / "nvidia.ko")]
    assert warning is None


def test_a_flavour_that_fits_but_was_not_baked_is_warned_about(tmp_path: Path):
    decision = decision_for("p3dn.24xlarge", tmp_path)
    loads, warning = act.commands(decision, "open", "6.1.0", sysfs=str(tmp_path))
    assert loads[0] == ["modprobe", "nvidia"]
    assert "wants the proprietary module" in warning


def test_a_module_that_udev_has_loaded_already_is_left_alone(tmp_path: Path):
    decision = decision_for("g5.xlarge", tmp_path)
    (tmp_path / "module/nvidia").mkdir(parents=True)
    assert act.commands(decision, "open", "6.1.0", sysfs=str(tmp_path)) == ([], None)


def test_flags_of_an_earlier_boot_on_other_hardware_are_taken_away(tmp_path: Path):
    flags = tmp_path / "flags"
    act.write_flags(decision_for("p4d.24xlarge", tmp_path / "a"), str(flags))
    assert (flags / "nvswitch").exists()
    act.write_flags(decision_for("g5.xlarge", tmp_path / "b"), str(flags))
    assert sorted(path.name for path in flags.iterdir()) == ["decision.json", "gpu"]
