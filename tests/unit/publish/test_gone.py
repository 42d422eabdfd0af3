"""An AMI that somebody deregisters while AMIs are listed is left out; the others are listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiln.cloud import aws
from kiln.publish import images, own_images
from lab.amis import images as lab_images
from lab.settings import Lab
from tests.unit.publish.channel import AWS, Bake


def deregister(ec2: Any, ami_id: str) -> None:
    """Deregister an AMI and delete its snapshots."""
    (image,) = ec2.describe_images(ImageIds=[ami_id])["Images"]
    ec2.deregister_image(ImageId=ami_id)
    for device in image["BlockDeviceMappings"]:
        ec2.delete_snapshot(SnapshotId=device["Ebs"]["SnapshotId"])


class WhileListed:
    """An EC2 client; an AMI is gone by the time that the caller has the list."""

    def __init__(self, ec2: Any, going: str) -> None:
        self._ec2, self._going = ec2, going

    def describe_images(self, **query: Any) -> Any:
        answer = self._ec2.describe_images(**query)
        deregister(self._ec2, self._going)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ec2, name)


def test_a_list_of_amis_leaves_out_one_that_is_deregistered_meanwhile(
    client: Callable[..., Any], bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, staying = bake(1), bake(2)
    ec2 = WhileListed(client("ec2"), going)
    monkeypatch.setattr(aws, "ec2", lambda target: ec2)
    listed = images.images_there(AWS, ImageIds=[going, staying])
    assert [image.ami_id for image in listed] == [staying]


def test_an_ami_that_is_gone_is_none_and_no_error(client: Callable[..., Any], bake: Bake) -> None:
    image = client("ec2").copy_image(SourceImageId=bake(1), SourceRegion="us-east-1", Name="gone")
    deregister(client("ec2"), image["ImageId"])
    assert own_images.own_image(AWS, image["ImageId"]) is None


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
