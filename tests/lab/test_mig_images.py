"""Each row of the matrix on each machine with NVSwitch and MIG that it serves: its slices at boot.

Guests with the row's base, driver version, units and daemons, but without a bake: fabric manager,
persistenced, DCGM and the CloudWatch agent have the GPUs open as they have them on the image. A few
rows are tried; KILN_MIG_ROWS=all tries every row on every such machine.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import guests
import mig_guest
import pytest

from kiln import facts
from kiln.base.paths import ROOT, RUNTIME
from kiln.base.recipe import Recipe
from kiln.compat.which import rows_for
from kiln.facts import InstanceType
from kiln.matrix import load

pytestmark = [guests.AS_ROOT, pytest.mark.beside]
PAYLOADS = ROOT / "lab/vendors/packages/payloads"
TYPES = sorted(
    (t for t in facts.instances().values() if t.nvswitch and t.mig), key=lambda t: t.type
)
RECIPES = {recipe.name: recipe for recipe in load.load_recipes()}
SERVED = [
    (serves["row"], each.type)
    for each in TYPES
    for serves in rows_for(each.type, RECIPES.values())["serves"]
    if RECIPES[serves["row"]].arch == each.arch
]
# Without the drop-ins that systemd 219 does not know; with DCGM.
SOME = [
    next(case for case in SERVED if case[1] == machine and RECIPES[case[0]].distro.id == distro)
    for distro, machine in (("al2", "p4de.24xlarge"), ("debian12", "p5.48xlarge"))
]
CASES = SERVED if os.environ.get("KILN_MIG_ROWS") == "all" else SOME
SHIPPED = (
    "opt/kiln/lib/gpu_boot",
    "opt/kiln/lib/gpu_xid",
    "usr/local/bin/gpu-xid",
    "usr/local/bin/kiln-gpu-boot",
    "usr/local/bin/kiln-gpu-clocks",
    "etc/kiln/gpu-xid.json",
    "etc/systemd/system/kiln-gpu.target",
    "etc/systemd/system/kiln-gpu-health.service",
    "etc/systemd/system/kiln-gpu-boot.service",
    "etc/systemd/system/kiln-gpu-clocks.service",
    "etc/systemd/system/nvidia-fabricmanager.service.d",
    "etc/systemd/system/nvidia-persistenced.service.d",
)
DROPINS = (
    "etc/systemd/system/kiln-.service.d",
    "etc/systemd/system/kiln-gpu-.service.d",
    "etc/systemd/system/kiln-mig.service.d",
)
# Python, so that the stand-in sees the program's name.
WATCHER = """#!/usr/bin/python3
# Test double: has every GPU open, as DCGM's host engine and the CloudWatch agent have.
import glob, signal
held = [open(path) for path in glob.glob("/dev/nvidia[0-9]*")]
signal.pause()
"""
UNIT = """[Unit]
Description=Test double
[Service]
ExecStart={program}
[Install]
WantedBy=multi-user.target
"""


class Image(mig_guest.Machine):
    """A guest with a row's units; `services` are those that must run."""

    services: tuple[str, ...] = ()

    def other_host(self) -> None:
        """What a stop and start does: other cards, in their factory state."""
        self.off()
        shutil.rmtree(self.root / "var/lib/kiln-lab/nvidia-smi", ignore_errors=True)

    def lay(self, source: Path, name: str) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=skip, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

    def service(self, name: str, program: str = "") -> None:
        """Enable a unit, with a test double as its program if there is one."""
        if program:
            self.write(program, WATCHER, 0o755)
            self.write(f"/etc/systemd/system/{name}.service", UNIT.format(program=program))
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        (wants / f"{name}.service").symlink_to(f"/etc/systemd/system/{name}.service")
        self.services = (*self.services, name)


def lay_down(guest: Image, recipe: Recipe, machine: InstanceType) -> None:
    """What the row's provisioners leave, as far as GPUs are concerned."""
    mig_guest.lay_down(guest)
    guest.services = ("kiln-mig", "kubelet")
    version = {"version": recipe.driver, "cuda": "13.0"}
    guest.write("/var/lib/kiln-lab/driver.json", json.dumps(version))
    guest.gpus(machine.type)
    for name in SHIPPED:
        guest.lay(RUNTIME / name, name)
    if recipe.distro.id != "al2":
        for name in DROPINS:
            guest.lay(RUNTIME / name, name)
    fabric = "usr/lib/systemd/system/nvidia-fabricmanager.service"
    guest.lay(PAYLOADS / "fabricmanager" / fabric, fabric.replace("usr/lib", "etc"))
    own = "etc/systemd/system/nvidia-persistenced.service"
    packaged = PAYLOADS / "persistenced/usr/lib/systemd/system/nvidia-persistenced.service"
    guest.lay(RUNTIME / own if recipe.driver_source == "runfile" else packaged, own)
    for name in ("kiln-gpu-boot", "nvidia-fabricmanager", "nvidia-persistenced", "kiln-gpu-health"):
        guest.service(name)
    guest.service("amazon-cloudwatch-agent", "/usr/bin/amazon-cloudwatch-agent")
    if "dcgm" in recipe.components:
        guest.service("nvidia-dcgm", "/usr/bin/nv-hostengine")


def small_slices(gpu: str) -> tuple[str, mig_guest.Layout]:
    """The label that cuts every GPU of the model into the most equal slices."""
    whole = {
        label: layout
        for label, layout in mig_guest.layouts(gpu).items()
        if label.startswith("all-") and len(layout[1]) == 1
    }
    return max(whole.items(), key=lambda item: item[1][1][0][1])


@pytest.fixture
def image(tmp_path: Path, row: str) -> Iterator[Image]:
    with guests.made(Image, tmp_path, RECIPES[row].distro.id) as guest:
        yield guest


def test_every_machine_with_nvswitch_and_mig_has_a_row():
    assert {machine for _, machine in SERVED} == {machine.type for machine in TYPES}


@pytest.mark.parametrize(("row", "machine"), CASES)
def test_an_image_has_its_slices_after_every_kind_of_boot(image: Image, row: str, machine: str):
    kind = facts.instance(machine)
    lay_down(image, RECIPES[row], kind)
    label, layout = small_slices(kind.gpu)
    assert layout[1][0][1] == 7
    image.settings(MIG_CONFIG=label)

    def assert_cut(boots: int) -> None:
        journal = image.run("journalctl", "-b", "-o", "cat", "-u", "kiln-mig")
        assert image.boots == boots, journal
        assert image.state() == {layout}, journal
        assert image.verify()["ok"] is True
        for name in image.services:
            assert image.unit("ActiveState", of=f"{name}.service") == ["active"], name

    image.boot()
    assert_cut(1)
    image.reboot()
    assert_cut(2)
    image.other_host()
    image.boot()
    assert_cut(3)
    if kind.gpu_arch != "ampere":
        return
    image.other_host()
    image.faults(blocks_reset={"nv-fabricmanager": True})
    image.boot()
    assert_cut(5)  # the one reboot
