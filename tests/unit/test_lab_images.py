"""The AMIs of a lab on disk."""

from __future__ import annotations

import contextlib
import logging
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lab.base import locks
from lab.base.settings import Lab
from lab.base.shell import CommandError
from lab.machine import disks, images


def image(name: str, *layers: str) -> images.Image:
    return images.Image(
        id=f"ami-{name}",
        name=name,
        region="us-east-1",
        description="",
        architecture="x86_64",
        root_device_name="/dev/xvda",
        distro="al2023",
        base="/",
        layers=[*layers, f"ami-{name}"],
        created="2026-01-01T00:00:00",
        instance_id="",
        volume_size=8,
        encrypted=False,
    )


@pytest.mark.parametrize("left", ["", '{"id": "ami-cut", "na', "[]", '{"id": "ami-cut"}'])
def test_an_ami_whose_entry_a_power_cut_has_damaged_hides_no_other_and_keeps_its_files(
    left: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(6, tmp_path)
    for name in ("cut", "whole"):
        images.save(lab, image(name))
        (lab.images / f"ami-{name}" / "layer").mkdir()
    entry = lab.images / "ami-cut" / "image.json"
    entry.write_text(left)
    with caplog.at_level(logging.WARNING):
        assert images.load(lab) == [image("whole")]
    assert f"ami-cut is not in this lab: {entry} is damaged" in caplog.text
    images.deregister(lab, "ami-whole", set())
    assert [path.name for path in lab.images.iterdir()] == ["ami-cut"]


def test_the_place_of_a_lock_that_leads_to_another_file_changes_nothing_there(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.write_text("content")
    (tmp_path / "lock").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"), locks.alone(tmp_path / "lock"):
        pass
    assert other.read_text() == "content"


def test_the_copy_of_a_running_instance_has_nothing_of_this_machine(tmp_path: Path) -> None:
    lab, secret = Lab(6, tmp_path), tmp_path / "of the machine" / "secret"
    secret.parent.mkdir()
    secret.touch()
    upper = lab.instances / "i-1" / "upper"
    (upper / "folder").mkdir(parents=True)
    (upper / "folder" / "file").write_text("content")
    (upper / "folder" / "file").chmod(0o4755)
    (upper / "link").symlink_to(secret.parent)
    swaps = [sys.executable, "-c", SWAP_FOR_EVER, str(upper / "folder"), str(upper / "link")]
    with subprocess.Popen(swaps, stdout=subprocess.PIPE) as guest:
        try:
            assert guest.stdout
            guest.stdout.readline()
            for number in range(60):
                layer = lab.images / f"ami-{number}" / "layer"
                with contextlib.suppress(CommandError):  # then there is no such AMI
                    disks.copy(lab, "i-1", f"ami-{number}")
                copied = [path for path in layer.iterdir() if not path.is_symlink()]
                assert not [path for path in copied if (path / "secret").exists()]
        finally:
            guest.kill()
    layer = disks.copy(lab, "i-1", "ami-last")
    (folder,) = (path for path in layer.iterdir() if not path.is_symlink())
    assert (folder / "file").read_text() == "content"
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o4755


# renameat2(2): AT_FDCWD, RENAME_EXCHANGE.
SWAP_FOR_EVER = """
import ctypes, os, sys
first, second = map(os.fsencode, sys.argv[1:])
rename = ctypes.CDLL(None).renameat2
print(flush=True)
while True:
    rename(-100, first, -100, second, 2)
"""
