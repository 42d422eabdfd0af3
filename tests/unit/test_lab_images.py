"""The AMIs of a lab on disk."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lab import locks
from lab.amis import images
from lab.settings import Lab


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
