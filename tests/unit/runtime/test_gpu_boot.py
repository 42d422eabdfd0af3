"""kiln-gpu-boot: what an instance type's PCI devices lead to."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kiln.base.paths import RUNTIME
from kiln.compat import rules
from kiln.facts import InstanceType, instances
from lab.rootfs import pci as lab_pci

sys.path.insert(0, str(RUNTIME / "opt/kiln/lib"))

from gpu_boot import act, decide, kernel_modules
from gpu_common import pci

FACTS = decide.device_facts()
KERNEL = "6.1.0"
MODULES = ("nvidia", "nvidia-modeset", "nvidia-uvm", "nvidia-peermem")


def decision_for(instance_type: str, sysfs: Path) -> dict:
    lab_pci.write(instance_type, sysfs)
    return decide.decide(pci.devices(str(sysfs)), FACTS)


class Image:
    """The two folders of an image with both kernel modules; a file's content is its kind."""

    def __init__(self, root: Path, suffix: str = ".ko.xz"):
        self.archive, self.modules, self.sysfs = root / "archive", root / "modules", root / "sys"
        self.suffix = suffix
        self.ran: list[list[str]] = []
        for kind in ("open", "proprietary"):
            self.write(self.archive / KERNEL / kind, kind)
        self.write(self.modules / KERNEL, "open")

    def write(self, folder: Path, kind: str) -> None:
        (folder / "extra").mkdir(parents=True)
        for name in MODULES:
            (folder / "extra" / (name + self.suffix)).write_text(kind)

    def run(self, command: list[str]) -> str:
        """modinfo, from the files; depmod is noted down."""
        self.ran.append(command)
        if command[0] != "modinfo":
            return ""
        _, _, kernel, _, field, name = command
        path = self.modules / kernel / "extra" / (name + self.suffix)
        if not path.exists():
            return ""
        text = path.read_text()
        held = "NVIDIA" if text == "proprietary" else "Dual MIT/GPL"
        return (held if field == "license" else f"of-{text}") + "\n"

    def in_place(self) -> set[str]:
        """The kinds of what lies below /lib/modules."""
        files = [path for path in (self.modules / KERNEL).rglob("*") if path.is_file()]
        assert sorted(path.name for path in files) == sorted(m + self.suffix for m in MODULES)
        return {path.read_text() for path in files}

    def select(self, decision: dict) -> list[str]:
        return act.select(decision, str(self.archive), str(self.modules), self.run)

    def commands(self, decision: dict) -> tuple[list[list[str]], str | None]:
        return act.commands(
            decision, KERNEL, archive=str(self.archive), sysfs=str(self.sysfs), run=self.run
        )


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def one_kind(kind: str | None) -> Callable[[list[str]], str]:
    """modinfo on an image that has one kind of kernel module, or none."""
    held = {"open": "Dual MIT/GPL\n", "proprietary": "NVIDIA\n", None: ""}[kind]
    return lambda command: held if command[-1] == "nvidia" else ""


def right_kind(entry: InstanceType) -> str:
    """From the rules of `check`, not from what the pipeline ships: what AWS runs there."""
    if entry.open_modules == "required":
        return "open"
    old = entry.open_modules == "unsupported"
    return "proprietary" if old or entry.family in GSP_OFF else "open"


GSP_OFF = rules()["GPU-OPEN-G"].limits["families"]


@pytest.mark.parametrize("name", instances())
def test_every_instance_type_gets_its_services_and_its_module(name: str, image: Image):
    entry = instances()[name]
    decision = decision_for(name, image.sysfs)
    assert len(decision["gpus"]) == max(entry.gpu_count, 1)
    assert decision["apply"] == {
        "gpu": True,
        "nvswitch": entry.nvswitch,
        "nvlsm": entry.nvlsm,
        "imex": entry.imex,
        "clocks": entry.application_clocks is not None,
    }
    wanted = {"required": "open", "unsupported": "proprietary", "supported": "either"}
    assert decision["module"] == wanted[entry.open_modules]
    # With both modules baked, after a machine that needed the other one.
    other = "p3dn.24xlarge" if right_kind(entry) == "open" else "p6-b200.48xlarge"
    image.select(decision_for(other, image.sysfs / other))
    image.select(decision)
    assert image.in_place() == {right_kind(entry)}
    loads, warning = image.commands(decision)
    assert loads[0][:2] == ["modprobe", "nvidia"]
    assert warning is None


def test_the_second_boot_on_a_machine_copies_nothing(image: Image):
    decision = decision_for("p3dn.24xlarge", image.sysfs)
    assert image.select(decision) == ["the proprietary module replaces the open module"]
    assert ["depmod", KERNEL] in image.ran
    image.ran.clear()
    assert image.select(decision) == ["the proprietary module is installed"]
    assert ["depmod", KERNEL] not in image.ran


def test_power_lost_while_copying_is_made_good_at_the_next_boot(
    image: Image, monkeypatch: pytest.MonkeyPatch
):
    decision = decision_for("p3dn.24xlarge", image.sysfs)
    replaced: list[str] = []
    real = kernel_modules._replace

    def dies(source: str, target: str) -> None:
        if len(replaced) == 2:
            raise OSError("No space left on device")
        replaced.append(target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(kernel_modules, "_replace", dies)
        with pytest.raises(OSError, match="No space left"):
            image.select(decision)
    assert image.in_place() == {"open", "proprietary"}
    assert not any(path.endswith("/nvidia.ko.xz") for path in replaced), "the driver comes last"
    image.select(decision)
    assert image.in_place() == {"proprietary"}


def test_an_archive_without_the_driver_is_an_error_not_a_claim(image: Image):
    (image.archive / KERNEL / "proprietary/extra/nvidia.ko.xz").unlink()
    with pytest.raises(OSError, match="contains no proprietary driver"):
        image.select(decision_for("p3dn.24xlarge", image.sysfs))


@pytest.mark.parametrize(
    ("instance_type", "runs", "off"),
    [
        ("g4dn.xlarge", KERNEL, True),
        ("p6-b200.48xlarge", KERNEL, False),
        ("m5.large", KERNEL, False),
        # That kernel came later: it has the open module alone, which needs the firmware.
        ("g4dn.xlarge", "6.1.99", False),
    ],
)
def test_gsp_firmware_is_off_before_the_driver_loads(
    instance_type: str, runs: str, off: bool, image: Image, tmp_path: Path
):
    image.write(image.modules / "6.1.99", "open")
    decision = decision_for(instance_type, image.sysfs)
    image.select(decision)
    act.write_options(decision, runs, str(tmp_path), image.run)
    files = [path.read_text().splitlines() for path in tmp_path.glob("*.conf")]
    # Debian's driver has the second name.
    names = ("nvidia", "nvidia-current")
    assert files == ([[f"options {n} NVreg_EnableGpuFirmware=0" for n in names]] if off else [])


def test_an_image_with_one_module_loads_it_with_its_own_defaults(tmp_path: Path):
    decision = decision_for("g4dn.xlarge", tmp_path)
    run = one_kind("open")
    loads, warning = act.commands(decision, KERNEL, sysfs=str(tmp_path), run=run)
    assert loads[:2] == [["modprobe", "nvidia"], ["modprobe", "nvidia-uvm"]]
    assert warning is None


def test_a_machine_without_gpu_starts_nothing(image: Image):
    decision = decision_for("m5.large", image.sysfs)
    assert decision["module"] is None
    assert not any(decision["apply"].values())
    assert image.select(decision) == []
    assert image.commands(decision) == ([], None)


def test_an_unknown_gpu_gets_the_open_module(image: Image):
    image.select(decision_for("p3dn.24xlarge", image.sysfs))
    newer = pci.Device("0000:10:00.0", "10de", "ffff", "0302", "")
    decision = decide.decide([newer], FACTS)
    assert decision["module"] == "open"
    assert decision["gpus"][0]["name"] is None
    image.select(decision)
    assert image.in_place() == {"open"}
    # An old GPU beside it changes nothing; another vendor's display adapter is no GPU.
    old = pci.Device("0000:11:00.0", "10de", "1db5", "0302", "")
    assert decide.decide([old, newer], FACTS)["module"] == "open"
    vga = pci.Device("0000:00:03.0", "1d0f", "1111", "0300", "")
    assert decide.decide([vga], FACTS)["gpus"] == []


def test_module_that_was_not_baked_is_warned_about(tmp_path: Path):
    decision = decision_for("p3dn.24xlarge", tmp_path)
    run = one_kind("open")
    loads, warning = act.commands(decision, KERNEL, sysfs=str(tmp_path), run=run)
    assert loads[0] == ["modprobe", "nvidia"]
    assert "needs the proprietary module" in warning


def test_later_kernel_has_dkms_module_and_a_warning(image: Image):
    image.write(image.modules / "6.1.99", "open")
    decision = decision_for("p3dn.24xlarge", image.sysfs)
    image.select(decision)
    _, warning = act.commands(
        decision, "6.1.99", archive=str(image.archive), sysfs=str(image.sysfs), run=image.run
    )
    assert "the image has only the open module" in warning


EXTRAS = [
    ["modprobe", "nvidia-uvm"],
    *(["modprobe", "--quiet", name] for name in ("gdrdrv", "efa_nv_peermem", "nvidia-peermem")),
]


@pytest.mark.parametrize("loaded", [False, True])
def test_extras_load_even_if_udev_loaded_the_driver(loaded: bool, tmp_path: Path):
    decision = decision_for("g5.xlarge", tmp_path)
    if loaded:
        (tmp_path / "module/nvidia").mkdir(parents=True)
    loads, warning = act.commands(decision, KERNEL, sysfs=str(tmp_path), run=one_kind("open"))
    assert loads == [*([] if loaded else [["modprobe", "nvidia"]]), *EXTRAS]
    assert warning is None


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(("registered", "made"), [("511 gdrdrv\n", True), ("", False)])
def test_gdrdrv_gets_a_device_for_all_with_its_number(
    registered: str, made: bool, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def mknod(path: str, mode: int, device: int) -> None:
        assert (mode, device) == (stat.S_IFCHR | 0o666, os.makedev(511, 0))
        Path(path).open("x").close()

    monkeypatch.setattr(os, "mknod", mknod)
    (tmp_path / "devices").write_text(
        f"Character devices:\n  1 mem\n{registered}\nBlock devices:\n"
    )
    node = tmp_path / "gdrdrv"
    if there:
        node.write_text("an earlier one's")
        node.chmod(0o600)
    act.make_gdrdrv_node(str(tmp_path / "devices"), str(node))
    assert node.exists() is (made or there)
    if made:
        assert (node.read_text(), node.stat().st_mode & 0o777) == ("", 0o666)


@pytest.mark.parametrize(("loaded", "unloads"), [("open", True), ("proprietary", False)])
def test_a_loaded_module_makes_way_only_for_another_kind(image: Image, loaded: str, unloads: bool):
    decision = decision_for("p3dn.24xlarge", image.sysfs)
    image.select(decision)
    (image.sysfs / "module/nvidia").mkdir(parents=True)
    (image.sysfs / "module/nvidia/srcversion").write_text(f"of-{loaded}\n")
    loads, _ = image.commands(decision)
    assert (["modprobe", "--quiet", "--remove", "nvidia"] in loads) == unloads
    assert (["modprobe", "nvidia"] in loads) == unloads


def test_flags_of_other_hardware_are_taken_away(tmp_path: Path):
    flags = tmp_path / "flags"
    act.write_flags(decision_for("p4d.24xlarge", tmp_path / "a"), str(flags))
    assert (flags / "nvswitch").exists()
    act.write_flags(decision_for("g5.xlarge", tmp_path / "b"), str(flags))
    assert sorted(path.name for path in flags.iterdir()) == ["clocks", "decision.json", "gpu"]


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


LICENSE = "echo 'Dual MIT/GPL'"


@pytest.mark.parametrize(
    ("modinfo", "failing", "status", "message"),
    [
        (LICENSE, "nvidia", 1, "<3>modprobe nvidia failed"),
        (LICENSE, "nvidia-uvm", 0, "<4>modprobe nvidia-uvm failed"),
        (LICENSE, "ib_umad", 0, "<4>modprobe ib_umad failed"),
        (LICENSE, "gdrdrv", 0, ""),  # not on every image
        ("exit 1", "none", 1, "<3>no nvidia module is installed for kernel"),
        ("exit 97", "none", 1, "modinfo"),  # which is no missing module
    ],
)
def test_module_that_does_not_load_is_said(
    modinfo: str, failing: str, status: int, message: str, tmp_path: Path, monkeypatch, capsys
):
    from gpu_boot import __main__ as main

    decision = decision_for("p6-b200.48xlarge", tmp_path / "sys")
    program(tmp_path, "modinfo", modinfo)
    program(tmp_path, "modprobe", f'for last; do :; done; [ "$last" != {failing} ]')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main.load(decision) == status
    output = capsys.readouterr().out
    assert message in output
    assert message or not output


def test_a_depmod_that_fails_is_an_error(image: Image, tmp_path: Path, monkeypatch):
    program(tmp_path, "depmod", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def run(command: list[str]) -> str:
        return image.run(command) if command[0] == "modinfo" else kernel_modules.output(command)

    with pytest.raises(OSError, match="depmod"):
        act.select(
            decision_for("p2.xlarge", image.sysfs), str(image.archive), str(image.modules), run
        )


def test_an_archive_without_an_installed_module_is_said(image: Image):
    decision = decision_for("p2.xlarge", image.sysfs)
    message = act.select(decision, str(image.archive), str(image.modules), one_kind(None))
    assert message == [f"<4>modinfo finds no nvidia module for kernel {KERNEL}"]
