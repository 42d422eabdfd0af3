"""AMIs of the lab: copied between regions, encrypted, found as the vendors' are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit import lab_api

AL2023 = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """A boto3 client of a lab by service and region."""
    with lab_api.serving(tmp_path_factory.mktemp("lab")) as endpoint:
        yield partial(lab_api.client, endpoint)


@pytest.fixture(scope="module")
def ec2(client: Callable[..., Any]) -> Any:
    return client("ec2")


@pytest.fixture(scope="module")
def parent(client: Callable[..., Any]) -> str:
    return str(client("ssm").get_parameter(Name=AL2023)["Parameter"]["Value"])


def until(ask: Callable[[], str], *wanted: str) -> None:
    """Ask until the answer is the wanted one."""
    for _ in range(1000):
        if ask() in wanted:
            return
        time.sleep(0.01)
    raise AssertionError(f"{ask()}, not {wanted}")


def image(ec2: Any, image_id: str) -> Any:
    return ec2.describe_images(ImageIds=[image_id])["Images"][0]


def available(ec2: Any, image_id: str) -> Any:
    until(lambda: image(ec2, image_id)["State"], "available")
    return image(ec2, image_id)


def launched(ec2: Any, **how: Any) -> Any:
    made = ec2.run_instances(MinCount=1, MaxCount=1, **how)["Instances"][0]["InstanceId"]

    def found() -> Any:
        return ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]

    until(lambda: found()["State"]["Name"], "running")
    return found()


def tags(thing: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in thing.get("Tags", [])}


def snapshot(ec2: Any, found: Any) -> Any:
    wanted = found["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    return ec2.describe_snapshots(SnapshotIds=[wanted])["Snapshots"][0]


@pytest.fixture(scope="module")
def baked(ec2: Any, parent: str) -> Any:
    """An AMI with a root volume of 20 GiB, a description and tags."""
    instance = launched(
        ec2,
        ImageId=parent,
        InstanceType="t3.micro",
        BlockDeviceMappings=[
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}}
        ],
    )
    made = ec2.create_image(
        InstanceId=instance["InstanceId"],
        Name="baked",
        Description="what it is",
        TagSpecifications=[
            {"ResourceType": "image", "Tags": [{"Key": "team", "Value": "ml"}]},
            {"ResourceType": "snapshot", "Tags": [{"Key": "kind", "Value": "disk"}]},
        ],
    )
    return available(ec2, made["ImageId"])


def copied(ec2: Any, source: Any, name: str, **more: Any) -> Any:
    more.setdefault("SourceRegion", "us-east-1")
    made = ec2.copy_image(SourceImageId=source["ImageId"], Name=name, **more)
    return available(ec2, made["ImageId"])


def test_a_copy_in_another_region_is_the_image_there_without_its_tags(
    client: Callable[..., Any], baked: Any
) -> None:
    there = client("ec2", "eu-west-1")
    found = copied(there, baked, "copy", Description="over there")
    assert found["ImageId"] != baked["ImageId"]
    assert (found["Name"], found["Description"]) == ("copy", "over there")
    for same in ("Architecture", "RootDeviceType", "RootDeviceName", "VirtualizationType"):
        assert found[same] == baked[same], same
    assert found["RootDeviceType"] == "ebs"
    assert found["ImageLocation"] == f"{found['OwnerId']}/copy"
    assert (found["SourceImageId"], found["SourceImageRegion"]) == (baked["ImageId"], "us-east-1")
    disk = found["BlockDeviceMappings"][0]["Ebs"]
    assert (disk["VolumeSize"], disk["Encrypted"]) == (20, False)
    assert disk["SnapshotId"] != baked["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    assert tags(found) == tags(snapshot(there, found)) == {}
    assert snapshot(there, found)["VolumeSize"] == 20
    assert snapshot(there, found)["Description"].startswith(
        f"Copied for DestinationAmi {found['ImageId']} from SourceAmi {baked['ImageId']} "
        f"for SourceSnapshot {baked['BlockDeviceMappings'][0]['Ebs']['SnapshotId']}. "
    )


def test_a_copy_has_the_tags_that_were_asked_for(client: Callable[..., Any], baked: Any) -> None:
    there = client("ec2", "eu-west-2")
    found = copied(
        there,
        baked,
        "with tags",
        CopyImageTags=True,
        TagSpecifications=[
            {"ResourceType": "image", "Tags": [{"Key": "new", "Value": "one"}]},
            {"ResourceType": "snapshot", "Tags": [{"Key": "disk", "Value": "new"}]},
        ],
    )
    assert tags(found) == {"team": "ml", "new": "one"}
    assert tags(snapshot(there, found)) == {"disk": "new"}
    with pytest.raises(ClientError, match=r"InvalidParameterValue.*instance"):
        copied(
            there,
            baked,
            "wrong tags",
            TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
        )


def test_an_encrypted_copy_is_encrypted_and_so_is_what_comes_of_it(
    client: Callable[..., Any], ec2: Any, baked: Any
) -> None:
    found = copied(ec2, baked, "encrypted", Encrypted=True)
    assert found["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    disk = snapshot(ec2, found)
    assert disk["Encrypted"] is True
    assert disk["KmsKeyId"].startswith("arn:aws:kms:us-east-1:")
    there = client("ec2", "eu-west-3")
    again = copied(there, found, "again")
    assert again["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        copied(there, found, "plain again", Encrypted=False)
    with pytest.raises(ClientError, match=r"InvalidParameterDependency"):
        copied(there, baked, "key alone", KmsKeyId="alias/mine")
    mine = copied(there, baked, "my key", Encrypted=True, KmsKeyId="arn:aws:kms:eu-west-3:1:key/k")
    assert snapshot(there, mine)["KmsKeyId"] == "arn:aws:kms:eu-west-3:1:key/k"


def test_a_copy_launches_also_when_its_source_is_gone_and_its_volume_is_the_images(
    client: Callable[..., Any], ec2: Any, baked: Any
) -> None:
    there = client("ec2", "eu-west-1")
    source = copied(ec2, baked, "source")
    found = copied(there, source, "to launch", Encrypted=True)
    ec2.deregister_image(ImageId=source["ImageId"])
    instance = launched(there, ImageId=found["ImageId"], InstanceType="t3.micro")
    (device,) = instance["BlockDeviceMappings"]
    assert device["DeviceName"] == found["RootDeviceName"]
    volume = there.describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"][0]
    assert (volume["Size"], volume["Encrypted"], volume["VolumeType"]) == (20, True, "gp3")
    assert volume["SnapshotId"] == found["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]


def test_a_public_image_can_be_copied(client: Callable[..., Any], parent: str) -> None:
    there = client("ec2", "us-west-2")
    found = copied(there, {"ImageId": parent}, "my own al2023")
    assert launched(there, ImageId=found["ImageId"], InstanceType="t3.micro")
    assert found["Public"] is False


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"SourceImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"SourceRegion": "eu-central-1"}, "InvalidAMIID.NotFound"),
        ({"Name": "baked"}, "InvalidAMIName.Duplicate"),
        ({"DryRun": True}, "DryRunOperation"),
    ],
)
def test_a_wrong_copy_is_refused_as_ec2_does(
    ec2: Any, baked: Any, wrong: dict[str, Any], code: str
) -> None:
    right = {"SourceImageId": baked["ImageId"], "SourceRegion": "us-east-1", "Name": "wrong"}
    with pytest.raises(ClientError) as refused:
        ec2.copy_image(**{**right, **wrong})
    assert refused.value.response["Error"]["Code"] == code


def test_a_deregistered_image_is_not_copied(ec2: Any, baked: Any) -> None:
    gone = copied(ec2, baked, "to go")
    ec2.deregister_image(ImageId=gone["ImageId"])
    with pytest.raises(ClientError, match=r"InvalidAMIID\.Unavailable"):
        copied(ec2, gone, "copy of what went")
