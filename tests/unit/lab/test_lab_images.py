"""The AMIs of a lab on disk."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lab.base import locks
from lab.base.settings import Lab
from lab.machine import images


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


@pytest.mark.parametrize("left", ["", '{"id": "ami-cut", "na'])
def test_damaged_ami_hides_no_other_and_keeps_its_files(
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


def test_lock_that_is_a_link_changes_no_other_file(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.write_text("content")
    (tmp_path / "lock").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"), locks.alone(tmp_path / "lock"):
        pass
    assert other.read_text() == "content"
