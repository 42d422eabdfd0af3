"""An AMI that somebody has deregistered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiln.cloud import images
from lab.base.settings import Lab
from lab.machine import images as lab_images
from tests.unit.publish.channel import AWS, Bake, Client


def deregister(ec2: Any, ami_id: str) -> None:
    """Deregister an AMI and delete its snapshots."""
    (image,) = ec2.describe_images(ImageIds=[ami_id])["Images"]
    ec2.deregister_image(ImageId=ami_id)
    for device in image["BlockDeviceMappings"]:
        ec2.delete_snapshot(SnapshotId=device["Ebs"]["SnapshotId"])


def test_an_ami_that_is_gone_is_none_and_no_error(client: Client, bake: Bake) -> None:
    image = client("ec2").copy_image(SourceImageId=bake(1), SourceRegion="us-east-1", Name="gone")
    deregister(client("ec2"), image["ImageId"])
    assert images.find_image(AWS, image["ImageId"]) is None


def test_the_lab_lists_its_amis_while_one_is_deregistered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(7, tmp_path)
    for number in range(2):
        lab_images.save(
            lab,
            lab_images.Image(
                id=f"ami-{number}",
                name=f"al2-{number}",
                region="us-east-1",
                description="",
                architecture="x86_64",
                root_device_name="/dev/xvda",
                distro="al2",
                base="/",
                layers=[],
                created="2026-11-01T00:00:00.000Z",
                instance_id="",
                volume_size=8,
                encrypted=False,
            ),
        )
    read_text = Path.read_text

    def meanwhile(path: Path) -> str:
        if path.parent.name == "ami-1":
            path.unlink()
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", meanwhile)
    assert [image.id for image in lab_images.load(lab)] == ["ami-0"]
