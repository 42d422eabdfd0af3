"""The parent AMI: looked up as it is today, and never guessed. AWS is moto, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from moto import mock_aws
from moto.ec2.models.amis import AMIS

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.cloud.images import find_parent
from kiln.cloud.target import Target
from kiln.matrix import load

AWS = Target("a test", "us-east-1")
ROWS = load.load_recipes()
BY_PARAMETER = next(row for row in ROWS if row.source_ami.ssm_parameter)


def by_name(name: str, owner: str = "self") -> Recipe:
    source = BY_PARAMETER.source_ami.changed(ssm_parameter=None, owner=owner, name=name)
    return BY_PARAMETER.changed(source_ami=source)


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("ec2", "us-east-1")


def publish(ec2: Any, name: str, arch: str = "x86_64") -> str:
    """Make an image of this account; its id."""
    parent = next(image["ami_id"] for image in AMIS if image["architecture"] == arch)
    launched = ec2.run_instances(
        ImageId=parent, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1
    )["Instances"][0]["InstanceId"]
    return str(ec2.create_image(InstanceId=launched, Name=name)["ImageId"])


def test_a_public_parameter_is_asked_for_by_name() -> None:
    """moto serves the parameters that AWS publishes."""
    with mock_aws():
        result = find_parent(BY_PARAMETER, AWS)
    assert result.ami_id.startswith("ami-")
    assert result.name
    assert result.found_by == f"ssm:{BY_PARAMETER.source_ami.ssm_parameter}"


@pytest.mark.usefixtures("ec2")
def test_a_parameter_that_is_not_there_is_named_with_where_to_change_it() -> None:
    source = BY_PARAMETER.source_ami.changed(ssm_parameter="/aws/service/none")
    with pytest.raises(KilnError, match="SSM has no such parameter") as caught:
        find_parent(BY_PARAMETER.changed(source_ami=source), AWS)
    assert "/aws/service/none" in caught.value.message
    assert "amis.yaml" in caught.value.hint
    assert caught.value.exit_status == 1


def test_by_name_it_is_the_one_that_fits_owner_and_architecture(ec2: Any) -> None:
    publish(ec2, "mine-arm-older", "arm64")
    wanted = publish(ec2, "mine-x86")
    publish(ec2, "mine-arm-newer", "arm64")
    publish(ec2, "another")
    assert find_parent(by_name("mine-*"), AWS).ami_id == wanted


def test_of_several_it_is_the_newest(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    newer, older = (publish(ec2, name) for name in ("mine-a", "mine-b"))
    dates = {newer: "2026-11-01T00:00:00.000Z", older: "2026-02-01T00:00:00.000Z"}
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def dated(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        answer = real(client, operation, parameters)
        for image in answer.get("Images", []):
            image["CreationDate"] = dates[image["ImageId"]]
        return answer

    monkeypatch.setattr(BaseClient, "_make_api_call", dated)
    assert find_parent(by_name("mine-*"), AWS).ami_id == newer


@pytest.mark.usefixtures("ec2")
def test_when_none_fits_the_look_up_that_failed_is_told() -> None:
    with pytest.raises(KilnError, match="no image matches") as caught:
        find_parent(by_name("nobodys-*"), AWS)
    assert "nobodys-*" in caught.value.message
    assert caught.value.exit_status == 1
