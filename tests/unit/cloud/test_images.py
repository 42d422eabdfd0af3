"""The parent AMI: looked up as it is today, and never guessed. AWS is moto, in this process."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from moto.core import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.ec2.models import ec2_backends

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.cloud.images import find_parent, missing_images
from kiln.cloud.target import Target
from kiln.matrix import load
from tests.unit.publish.faults import at_each_call

AWS = Target("a test", "eu-central-1")
BY_PARAMETER = next(row for row in load.load_recipes() if row.source_ami.ssm_parameter)


def by_name(name: str) -> Recipe:
    source = BY_PARAMETER.source_ami.changed(ssm_parameter=None, owner="self", name=name)
    return BY_PARAMETER.changed(source_ami=source)


def publish(ec2: Any, name: str, arch: str = "x86_64") -> str:
    """Make an image of this account; its id."""
    image_id = str(ec2.register_image(Name=name)["ImageId"])
    # moto forgets it.
    ec2_backends[ACCOUNT]["eu-central-1"].amis[image_id].architecture = arch
    return image_id


def test_public_parameter_is_asked_for_by_name(ec2: Any) -> None:
    """moto serves the parameters that AWS publishes; the AMI that this one names is ours here."""
    name = str(BY_PARAMETER.source_ami.ssm_parameter)
    published = boto3.client("ssm", "eu-central-1").get_parameter(Name=name)["Parameter"]["Value"]
    made = ec2_backends[ACCOUNT]["eu-central-1"].amis
    made[published] = made.pop(publish(ec2, "amzn2-ami-kernel-5.10"))
    made[published].id = published
    result = find_parent(BY_PARAMETER, AWS)
    assert (result.ami_id, result.name) == (published, "amzn2-ami-kernel-5.10")
    assert result.found_by == f"ssm:{name}"


def test_missing_images_are_those_that_ec2_does_not_have(ec2: Any) -> None:
    there = publish(ec2, "mine")
    assert missing_images(AWS, [there, "ami-0fade000"]) == {"ami-0fade000"}


@pytest.mark.usefixtures("ec2")
def test_look_up_that_failed_is_named() -> None:
    source = BY_PARAMETER.source_ami.changed(ssm_parameter="/aws/service/none")
    with pytest.raises(KilnError, match="SSM has no such parameter") as caught:
        find_parent(BY_PARAMETER.changed(source_ami=source), AWS)
    assert "/aws/service/none" in caught.value.message
    assert "amis.yaml" in caught.value.hint
    with pytest.raises(KilnError, match="no image matches") as caught:
        find_parent(by_name("nobodys-*"), AWS)
    assert "nobodys-*" in caught.value.message
    assert caught.value.exit_status == 1


def test_parent_is_the_newest_of_its_name_owner_and_arch(
    ec2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer, older = (publish(ec2, name) for name in ("mine-a", "mine-b"))
    arm = publish(ec2, "mine-arm", "arm64")
    publish(ec2, "another")
    dates = {newer: "2026-11-01", older: "2026-02-01", arm: "2026-11-20"}

    def dated(region: str, operation: str, given: Any, call: Any) -> Any:
        answer = call()
        for image in answer.get("Images", []):
            image["CreationDate"] = f"{dates[image['ImageId']]}T00:00:00.000Z"
        return answer

    at_each_call(monkeypatch, dated)
    assert find_parent(by_name("mine-*"), AWS).ami_id == newer
