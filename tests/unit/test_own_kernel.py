"""`verify --own-kernel`: which AMIs it takes, what it says, and what DHCP tells the machine."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cloud.target import Target
from kiln.matrix import flags, load
from lab.base.settings import Lab
from lab.machine.own_kernel import accelerator, dhcp
from lab.target import _require_own_kernel
from tests.unit.rows import row

OWN = row("debian12/debian/base/x86_64").name


def test_only_the_row_with_the_distributions_own_driver_boots_its_own_kernel() -> None:
    def taken(recipe: Recipe) -> bool:
        try:
            _require_own_kernel(recipe)
        except KilnError as refused:
            assert (refused.exit_status, refused.message.count("stand-in")) in ((2, 1), (2, 0))
            return False
        return True

    assert [r.name for r in load.load_recipes() if taken(r)] == [OWN]


@pytest.mark.parametrize(
    ("distro", "why"),
    [
        ("al2", "the kernel of Amazon Linux 2 is a stand-in"),
        ("ubuntu2404", "the kernel of Ubuntu 24.04 is a stand-in"),
        ("debian12", "NVIDIA's kernel module is a stand-in"),
    ],
)
def test_a_row_with_a_stand_in_is_refused_and_told_which(distro: str, why: str) -> None:
    recipe = next(r for r in load.load_recipes() if r.distro.id == distro and r.name != OWN)
    with pytest.raises(KilnError) as refused:
        _require_own_kernel(recipe)
    assert f"{recipe.name} cannot boot its own kernel" in refused.value.message
    assert why in refused.value.message


def test_in_aws_there_is_nothing_to_ask_for() -> None:
    with pytest.raises(KilnError, match="boots its AMI's own kernel") as refused:
        Target("a test").hooks.prepare([], Progress(), install=False, own_kernel=True)
    assert refused.value.exit_status == 2


def test_the_disk_can_be_kept_only_of_an_own_kernel_and_over_no_file(tmp_path: Path) -> None:
    (tmp_path / "there.raw").touch()
    for value, own, why in (
        ("out.raw", False, "give both"),
        (str(tmp_path / "there.raw"), True, "must be a new file"),
        (str(tmp_path / "no/out.raw"), True, "must be a new file"),
    ):
        with pytest.raises(KilnError) as refused:
            flags.disk(value, own_kernel=own)
        assert why in refused.value.message + (refused.value.hint or "")
    assert flags.disk(str(tmp_path / "out.raw"), own_kernel=True) == tmp_path / "out.raw"


def question(kind: int, mac: str) -> bytes:
    """A machine's packet of DHCP, as RFC 2131 has it."""
    head = struct.pack("!BBBBIHH16s", 1, 1, 6, 0, 0xC0FFEE, 0, 0, bytes(16))
    hardware = bytes.fromhex(mac.replace(":", "")).ljust(16, b"\0")
    return head + hardware + bytes(192) + b"\x63\x82\x53\x63" + bytes([53, 1, kind, 255])


@pytest.mark.parametrize(("asked", "answered"), [(1, 2), (3, 5)])
def test_a_machine_gets_its_own_address_and_the_labs_gateway(asked: int, answered: int) -> None:
    lab = Lab(3, Path("/nowhere"))
    packet = question(asked, "02:00:00:00:00:07")
    reply = dhcp.reply(lab, packet, "10.204.1.7", "ec2.internal")
    assert reply
    assert reply[4:8] == packet[4:8], "another question's answer"
    assert reply[16:20] == bytes([10, 204, 1, 7])
    assert reply[28:34] == bytes([2, 0, 0, 0, 0, 7])
    options = reply[240:]
    assert options[:3] == bytes([53, 1, answered])
    assert bytes([3, 4, 10, 204, 0, 1]) in options
    assert bytes([6, 4, 10, 204, 0, 2]) in options
    assert b"ec2.internal" in options


@pytest.mark.parametrize("packet", [b"", bytes(240), question(4, "02:00:00:00:00:07")])
def test_an_invalid_question_gets_no_answer(packet: bytes) -> None:
    assert dhcp.reply(Lab(3, Path("/nowhere")), packet, "10.204.1.7", "ec2.internal") is None


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A qemu that ends with a status, perhaps only with a processor of that name, else with 1; and
    a /dev/kvm that can be opened."""

    def ends_with(status: int, *, only_with: str = "") -> None:
        program = tmp_path / "qemu-system-x86_64"
        arms = f'*"{only_with}"*) exit {status} ;; *) exit 1 ;;'
        program.write_text(f'#!/bin/sh\ncase "$*" in {arms} esac\n')
        program.chmod(0o755)
        accelerator.options.cache_clear()

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: True)
    yield ends_with
    accelerator.options.cache_clear()


@pytest.mark.parametrize(("status", "name"), [(33, "KVM"), (134, "TCG"), (0, "TCG")])
def test_kvm_is_used_where_it_starts_a_processor(
    qemu: Callable[..., None], status: int, name: str
) -> None:
    qemu(status)
    assert accelerator.name() == name


def test_kvm_is_not_used_where_its_processor_lacks_what_64_bit_kernels_need(
    qemu: Callable[..., None],
) -> None:
    # Seen inside another virtual machine: it starts, the kernel stops without a word.
    qemu(33, only_with="-cpu host")
    assert accelerator.name() == "TCG"
