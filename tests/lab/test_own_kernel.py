"""`build --own-kernel`: an AMI boots its own kernel, from a disk with its boot loader.

It takes minutes: the bake compiles NVIDIA's real module, and the processor is emulated where there
is no KVM.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln.base.paths import AMI_TESTS
from kiln.base.processes import Stop
from kiln.base.progress import Progress
from kiln.cloud import aws
from kiln.cloud.instance import Machine
from kiln.cloud.target import OwnKernel, Target
from kiln.pipeline import build, checks
from kiln.pipeline.checks import Checks
from kiln.pipeline.plan import Options
from kiln.pipeline.record import Record
from lab.base import settings
from lab.base.settings import Lab
from lab.base.shell import run
from lab.daemon import control
from lab.machine import disks
from lab.target import LabTarget
from tests.unit.rows import row

pytestmark = pytest.mark.all

ROW = row("debian12/debian/base/x86_64")
MUTATIONS = yaml.safe_load((AMI_TESTS / "mutations.yaml").read_text())
# File → check → command.
BREAKS = {
    file: {
        n: e["own_kernel"] for n, e in entries.items() if isinstance(e, dict) and "own_kernel" in e
    }
    for file, entries in MUTATIONS["checks"].items()
}
CHECKS = tuple(AMI_TESTS / file for file, entries in BREAKS.items() if entries)
BROKEN = [name for entries in BREAKS.values() for name in entries]


@dataclass(frozen=True)
class Own:
    """The build, its disk, and the checks of the same machine after it was broken."""

    record: Record
    disk: Path
    broken: Checks
    left: list[str]
    target: Target


def break_it(machine: Machine) -> None:
    """Make every mutation of the checks of own kernels on the machine."""
    commands = list(dict.fromkeys(c for entries in BREAKS.values() for c in entries.values()))
    script = "\n".join([MUTATIONS["prelude"], *commands])
    text = base64.b64encode(script.encode()).decode()
    code, _, error = machine.ssh(f"echo {text} | base64 -d | sudo bash", timeout=300)
    assert code == 0, error


def of_the_lab(lab: Lab) -> list[str]:
    """What of machines with their own kernel is on this host."""
    processes = run("pgrep", "-af", f"^qemu-system.*{lab.bridge}p", check=False).splitlines()
    ports = [port.name for port in Path("/sys/class/net").glob(f"{lab.bridge}p*")]
    return [*processes, *ports, *map(str, lab.images.glob("*/disk*"))]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    lab = settings.current()
    target = LabTarget("a test", endpoint=lab.endpoint)
    kept = tmp_path_factory.mktemp("disk") / "out.raw"
    broken: list[Checks] = []
    original = checks.run_checks

    def twice(machine: Machine, expected: dict[str, Any], folder: Path, **more: Any) -> Checks:
        verdict = original(machine, expected, folder, **more)
        break_it(machine)
        broken.append(original(machine, expected, folder, stop=Stop(), tests=CHECKS))
        return verdict

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "run_checks", twice)
        patch.setenv("KILN_BUILD_DIR", str(tmp_path_factory.mktemp("build")))
        options = Options(own_kernel=OwnKernel(kept))
        outcome = build.build_recipes(
            [ROW], options, target, Progress(), install=True, on_failure=print
        )
    yield Own(outcome.built[0], kept, broken[0], of_the_lab(lab), target)
    control.down(lab)
    control.clean(lab)


def test_the_image_passes_all_its_checks_on_its_own_kernel(own: Own) -> None:
    assert own.record.checks
    bad = [check for check in own.record.checks.checks if check.outcome == "failed"]
    assert bad == []
    ran = {
        check.name.partition("[")[0]
        for check in own.record.checks.checks
        if check.outcome == "passed"
    }
    assert "test_kernel_is_the_one_that_was_baked_for" in ran
    assert set(BROKEN) <= ran


def test_own_kernel_checks_fail_on_a_broken_machine(own: Own) -> None:
    failed = {
        check.name.partition("[")[0] for check in own.broken.checks if check.outcome == "failed"
    }
    assert set(BROKEN) - failed == set()


def test_record_and_ami_say_that_it_booted_its_own_kernel(own: Own) -> None:
    assert own.record.status == "verified"
    assert re.fullmatch(r"qemu \((TCG|KVM)\)", own.record.own_kernel or "")
    image = aws.ec2(own.target).describe_images(ImageIds=[str(own.record.ami_id)])["Images"][0]
    tags = {tag["Key"]: tag["Value"] for tag in image["Tags"]}
    assert tags["kiln:own-kernel"].startswith("pass ")
    assert tags["kiln:own-kernel"] == tags["kiln:verified"]


def test_the_disk_is_kept_sparse_with_its_boot_loader(own: Own) -> None:
    table = run("sfdisk", "--dump", str(own.disk))
    assert "label: gpt" in table and table.count("start=") == 2
    assert own.disk.stat().st_blocks * 512 < 4 << 30 < own.disk.stat().st_size
    with own.disk.open("rb") as disk:
        assert b"GRUB" in disk.read(512)


def test_nothing_of_the_machine_is_left_but_its_console(own: Own) -> None:
    assert own.left == []
    lab = settings.current()
    consoles = [path.name for path in disks.folder(lab, "i-none").parent.glob("*/console.log")]
    assert consoles
