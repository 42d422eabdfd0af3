"""`verify --own-kernel`: which AMIs it takes, and what runs the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cloud.target import OwnKernel, Target
from kiln.matrix import flags, load
from lab.machine.own_kernel import accelerator
from lab.target import _require_own_kernel
from tests.unit.rows import row

OWN = row("debian12/debian/base/x86_64").name


def refusal(recipe: Recipe) -> KilnError | None:
    try:
        _require_own_kernel(recipe)
    except KilnError as error:
        assert error.exit_status == 2
        return error
    return None


def test_row_with_its_own_driver_boots_its_kernel() -> None:
    rows = load.load_recipes()
    refused = {row.distro.id: error.message for row in rows if (error := refusal(row))}
    assert [row.name for row in rows if not refusal(row)] == [OWN]
    assert "the kernel of Amazon Linux 2 is a stand-in" in refused["al2"]
    assert "NVIDIA's kernel module is a stand-in" in refused["debian12"]


def test_own_kernel_is_no_option_in_aws() -> None:
    prepared = Target("a test").hooks.prepared("", [], Progress(), own_kernel=OwnKernel())
    with pytest.raises(KilnError) as refused, prepared:
        pytest.fail("it was accepted")
    assert refused.value.exit_status == 2


def test_disk_needs_own_kernel_and_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "there.raw").touch()
    for name, own in (("out.raw", False), ("there.raw", True), ("no/out.raw", True)):
        with pytest.raises(KilnError):
            flags.disk(str(tmp_path / name), own_kernel=own)
    assert flags.disk(str(tmp_path / "out.raw"), own_kernel=True) == tmp_path / "out.raw"


# What qemu ends with, and for which processor → what runs a guest.
PROCESSORS = [
    (33, "", "KVM"),
    (134, "", "TCG"),
    (0, "", "TCG"),
    # Seen inside another virtual machine: KVM starts, and the 64-bit kernel stops without a word.
    (33, "-cpu host", "TCG"),
]


@pytest.mark.parametrize(("status", "only_with", "name"), PROCESSORS)
def test_kvm_is_used_where_it_starts_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, only_with: str, name: str
) -> None:
    program = tmp_path / "qemu-system-x86_64"
    arms = f'*"{only_with}"*) exit {status} ;; *) exit 1 ;;'
    program.write_text(f'#!/bin/sh\ncase "$*" in {arms} esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: True)
    accelerator.options.cache_clear()
    try:
        assert accelerator.name() == name
    finally:
        accelerator.options.cache_clear()
