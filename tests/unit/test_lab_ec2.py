"""The lab's EC2 answers as EC2 does: images, launches, states, refused calls. No guest boots."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.ec2.exceptions import EC2ClientError

from devel import lab_api
from kiln.base.recipe import SourceAmi
from kiln.base.vocabulary import read_time, utc_now
from kiln.cloud.target import Target
from kiln.matrix.load import load_recipes
from kiln.preflight.ask import ask_parent
from kiln.preflight.indexes import State
from lab.moto.ec2 import consistency

# One lab for all tests of this file, wherever they run.
pytestmark = pytest.mark.xdist_group("lab_ec2")
AL2023 = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a lab."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Callable[..., Any]]:
    """A boto3 client of that lab by service and region."""
    with lab_api.serving(folder) as endpoint:
        yield partial(lab_api.client, endpoint)


@pytest.fixture(scope="module")
def ec2(client: Callable[..., Any]) -> Any:
    return client("ec2")


@pytest.fixture(scope="module")
def parent(client: Callable[..., Any]) -> str:
    return str(client("ssm").get_parameter(Name=AL2023)["Parameter"]["Value"])


def until(ask: Callable[[], str], *wanted: str) -> None:
    """Ask until the answer is the wanted one."""
    for _ in range(6000):
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
    kms = client("kms", "eu-west-3")
    key = kms.create_key()["KeyMetadata"]["Arn"]
    kms.create_alias(AliasName="alias/mine", TargetKeyId=key)
    mine = copied(there, baked, "my key", Encrypted=True, KmsKeyId="alias/mine")
    assert snapshot(there, mine)["KmsKeyId"] == key


def test_image_that_awss_key_encrypts_is_not_shared(ec2: Any, baked: Any) -> None:
    found = copied(ec2, baked, "default key", Encrypted=True)
    account = {"Add": [{"UserId": "111122223333"}]}
    with pytest.raises(ClientError, match=r"InvalidParameter.*AWS Managed CMK"):
        ec2.modify_image_attribute(ImageId=found["ImageId"], LaunchPermission=account)
    disk = snapshot(ec2, found)["SnapshotId"]
    with pytest.raises(ClientError, match=r"OperationNotPermitted.*EBS default key"):
        ec2.modify_snapshot_attribute(
            SnapshotId=disk, Attribute="createVolumePermission", CreateVolumePermission=account
        )


def test_a_volume_and_what_is_baked_of_it_have_the_key_that_the_launch_names(
    client: Callable[..., Any], ec2: Any, parent: str
) -> None:
    kms = client("kms")
    key = kms.create_key()["KeyMetadata"]
    kms.create_alias(AliasName="alias/ami", TargetKeyId=key["KeyId"])
    for name in ("alias/ami", key["KeyId"], key["Arn"]):
        disk = {"Encrypted": True, "KmsKeyId": name}
        instance = launched(
            ec2, ImageId=parent, BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": disk}]
        )
        volume = instance["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
        (found,) = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
        assert found["KmsKeyId"] == key["Arn"], name
    made = ec2.create_image(InstanceId=instance["InstanceId"], Name="with my key")
    assert snapshot(ec2, available(ec2, made["ImageId"]))["KmsKeyId"] == key["Arn"]


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


FOUND = [
    ("amazon", "al2023-ami-2023*-x86_64", "137112412989", "/dev/xvda"),
    ("amazon", "al2023-ami-2023.*.*.*-kernel-6.1-arm64", "137112412989", "/dev/xvda"),
    ("amazon", "amzn2-ami-kernel-5.10-hvm-*.*.*.*-x86_64-gp2", "137112412989", "/dev/xvda"),
    ("amazon", "amazon-eks-node-al2023-x86_64-standard-1.33-v*", "602401143452", "/dev/xvda"),
    ("602401143452", "amazon-eks-node-al2023-*", "602401143452", "/dev/xvda"),
    (
        "099720109477",
        "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*",
        "099720109477",
        "/dev/sda1",
    ),
    (
        "099720109477",
        "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-arm64-server-*",
        "099720109477",
        "/dev/sda1",
    ),
    ("136693071363", "debian-12-amd64-*", "136693071363", "/dev/xvda"),
    ("amazon", "amzn2-ami-hvm-*-x86_64-ebs", "137112412989", "/dev/xvda"),
]


@pytest.mark.parametrize(("owner", "name", "account", "device"), FOUND)
def test_public_images_are_found_as_everyone_finds_them(
    ec2: Any, owner: str, name: str, account: str, device: str
) -> None:
    found = ec2.describe_images(
        Owners=[owner],
        Filters=[
            {"Name": "name", "Values": [name]},
            {"Name": "state", "Values": ["available"]},
            {"Name": "root-device-type", "Values": ["ebs"]},
            {"Name": "virtualization-type", "Values": ["hvm"]},
        ],
    )["Images"]
    assert found
    for listed_image in found:
        assert (listed_image["OwnerId"], listed_image["RootDeviceName"]) == (account, device)
        assert listed_image["ImageLocation"] == f"amazon/{listed_image['Name']}"
        assert listed_image["Architecture"] == (
            "arm64" if "arm64" in listed_image["Name"] else "x86_64"
        )


def test_a_public_image_looks_as_on_ec2_and_says_what_it_is(ec2: Any, parent: str) -> None:
    found = image(ec2, parent)
    assert found["Name"].startswith("al2023-ami-2023.")
    assert found["Name"].endswith("-kernel-6.1-x86_64")
    assert found["Description"].startswith("Amazon Linux 2023 AMI 2023.")
    assert (found["EnaSupport"], found["SriovNetSupport"]) == (True, "simple")
    assert (found["PlatformDetails"], found["UsageOperation"]) == ("Linux/UNIX", "RunInstances")
    assert (found["BootMode"], found["ImageOwnerAlias"]) == ("uefi-preferred", "amazon")
    assert (found["Public"], found["VirtualizationType"], found["Hypervisor"]) == (
        True,
        "hvm",
        "xen",
    )
    assert found["CreationDate"] == "2026-09-28T00:00:00.000Z"
    assert read_time(found["DeprecationTime"]) > utc_now()  # it stands for the newest
    assert found["Description"].endswith("(kiln-lab-stand-in)")
    assert tags(found) == {"kiln-lab-stand-in": "al2023"}


def test_an_image_made_of_one_has_its_boot_mode_and_no_deprecation(baked: Any) -> None:
    assert (baked["BootMode"], baked["EnaSupport"]) == ("uefi-preferred", True)
    assert (baked["PlatformDetails"], baked["UsageOperation"]) == ("Linux/UNIX", "RunInstances")
    assert "DeprecationTime" not in baked


def test_deprecated_image_of_others_is_hidden_unless_asked_for(ec2: Any, baked: Any) -> None:
    old = [{"Name": "name", "Values": ["al2023-ami-2023.5.*"]}]
    assert ec2.describe_images(Owners=["amazon"], Filters=old)["Images"] == []
    found = ec2.describe_images(Owners=["amazon"], Filters=old, IncludeDeprecated=True)["Images"]
    assert {image["Architecture"] for image in found} == {"x86_64", "arm64"}
    named = ec2.describe_images(ImageIds=[found[0]["ImageId"]])["Images"]
    assert named[0]["DeprecationTime"] < "2026"


def test_an_old_image_without_a_boot_mode_shows_none(ec2: Any, client: Callable[..., Any]) -> None:
    name = "/aws/service/ami-amazon-linux-latest/amzn2-ami-hvm-x86_64-gp2"
    found = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    assert "BootMode" not in image(ec2, found)


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64", "al2023-ami-2023"),
        ("ami-amazon-linux-latest/al2023-ami-minimal-kernel-default-arm64", "al2023-ami-minimal-"),
        ("ami-amazon-linux-latest/amzn2-ami-hvm-x86_64-gp2", "amzn2-ami-hvm-2.0."),
        (
            "eks/optimized-ami/1.35/amazon-linux-2023/arm64/standard/recommended/image_id",
            "amazon-eks-node-al2023-arm64-standard-1.35-v",
        ),
        ("ecs/optimized-ami/amazon-linux-2023/recommended/image_id", "al2023-ami-ecs-hvm-2023.0."),
        ("ecs/optimized-ami/amazon-linux-2/recommended/image_id", "amzn2-ami-ecs-hvm-2.0."),
        (
            "canonical/ubuntu/server/noble/stable/current/amd64/hvm/ebs-gp3/ami-id",
            "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-",
        ),
        (
            "canonical/ubuntu/server-minimal/noble/stable/current/amd64/hvm/ebs-gp3/ami-id",
            "ubuntu-minimal/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-minimal-",
        ),
        # A serial stands where `current` does.
        (
            "canonical/ubuntu/server/24.04/stable/20260930/arm64/hvm/ebs-gp3/ami-id",
            "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-arm64-server-20260930",
        ),
        ("debian/release/bookworm/latest/arm64", "debian-12-arm64-"),
        ("ami-amazon-linux-latest/amzn2-ami-hvm-x86_64-ebs", "amzn2-ami-hvm-2.0."),
    ],
)
def test_a_public_parameter_names_an_image_in_every_region(
    client: Callable[..., Any], name: str, begins: str
) -> None:
    for region in ("us-east-1", "eu-north-1"):
        asked = client("ssm", region).get_parameter(Name=f"/aws/service/{name}")["Parameter"]
        assert image(client("ec2", region), asked["Value"])["Name"].startswith(begins)


def test_public_parameters_tell_names_and_versions_besides_ids(client: Callable[..., Any]) -> None:
    def parameter(name: str) -> str:
        return str(client("ssm").get_parameter(Name=f"/aws/service/{name}")["Parameter"]["Value"])

    ecs = "ecs/optimized-ami/amazon-linux-2023/recommended"
    about = json.loads(parameter(ecs))
    assert about["image_id"] == parameter(f"{ecs}/image_id")
    assert about["image_name"] == parameter(f"{ecs}/image_name")
    eks = "eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/recommended/release_version"
    assert parameter(eks).startswith("1.33.")
    assert parameter("canonical/meta/publisher-id") == "099720109477"


def test_a_parameter_that_nobody_has_is_unknown(client: Callable[..., Any]) -> None:
    with pytest.raises(ClientError, match="ParameterNotFound"):
        client("ssm").get_parameter(Name="/aws/service/ami-amazon-linux-latest/mine")


def test_parameters_are_listed_by_their_data_type_and_aws_own_are_not(
    client: Callable[..., Any], parent: str
) -> None:
    ssm = client("ssm")
    ssm.put_parameter(Name="/mine/ami", Value=parent, Type="String", DataType="aws:ec2:image")
    ssm.put_parameter(Name="/mine/word", Value="word", Type="String")

    def listed(*filters: Any) -> set[str]:
        pages = ssm.get_paginator("describe_parameters").paginate(ParameterFilters=filters)
        return {parameter["Name"] for page in pages for parameter in page["Parameters"]}

    by_type = {"Key": "DataType", "Values": ["aws:ec2:image"]}
    first = ssm.describe_parameters(MaxResults=1)
    assert len(first["Parameters"]) == 1
    assert first["NextToken"]
    assert listed(by_type) == {"/mine/ami"}
    assert listed({"Key": "DataType", "Option": "BeginsWith", "Values": ["aws:"]}) == {"/mine/ami"}
    texts = listed({"Key": "DataType", "Values": ["text"]})
    assert "/mine/word" in texts
    assert "/mine/ami" not in texts
    assert not any(name.startswith("/aws/") for name in listed())
    with pytest.raises(ClientError, match="InvalidFilterOption"):
        listed({**by_type, "Option": "Contains"})
    with pytest.raises(ClientError, match="duplicated"):
        listed(by_type, by_type)
    ssm.delete_parameters(Names=["/mine/ami", "/mine/word"])


def test_an_instance_is_launched_from_a_parameter(client: Callable[..., Any], parent: str) -> None:
    ec2, ssm = client("ec2"), client("ssm")
    for name in (AL2023, f"{AL2023}:1"):
        made = launched(ec2, ImageId=f"resolve:ssm:{name}", InstanceType="t3.micro")
        assert made["ImageId"] == parent
    image = {"Type": "String", "DataType": "aws:ec2:image"}
    ssm.put_parameter(Name="/mine/golden", Value=parent, **image)
    made = launched(ec2, ImageId="resolve:ssm:/mine/golden", InstanceType="t3.micro")
    assert made["ImageId"] == parent
    with pytest.raises(ClientError, match=r"InvalidParameterValue.*/mine/none"):
        launched(ec2, ImageId="resolve:ssm:/mine/none", InstanceType="t3.micro")


@pytest.fixture(scope="module")
def template(ec2: Any, parent: str) -> str:
    """The name of a launch template with an image, a type, volumes and IMDSv2."""
    ec2.create_launch_template(
        LaunchTemplateName="all",
        LaunchTemplateData={
            "ImageId": parent,
            "InstanceType": "g4dn.xlarge",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
            "InstanceInitiatedShutdownBehavior": "terminate",
            "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 30}}],
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "ml"}]}
            ],
        },
    )
    return "all"


def test_an_instance_is_what_its_launch_template_says(ec2: Any, template: str, parent: str) -> None:
    for version in ("1", "$Latest", "$Default"):
        made = launched(ec2, LaunchTemplate={"LaunchTemplateName": template, "Version": version})
        assert (made["ImageId"], made["InstanceType"]) == (parent, "g4dn.xlarge")
        assert made["MetadataOptions"]["HttpTokens"] == "required"
        assert made["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
        assert tags(made)["team"] == "ml"
        (device,) = made["BlockDeviceMappings"]
        volume = ec2.describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"][0]
        assert volume["Size"] == 30
        behavior = ec2.describe_instance_attribute(
            InstanceId=made["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
        )
        assert behavior["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"


def test_what_the_call_says_goes_before_its_launch_template(
    ec2: Any, template: str, baked: Any
) -> None:
    made = launched(
        ec2,
        LaunchTemplate={"LaunchTemplateName": template},
        ImageId=baked["ImageId"],
        InstanceType="t3.micro",
        MetadataOptions={"HttpTokens": "optional"},
        InstanceInitiatedShutdownBehavior="stop",
    )
    assert (made["ImageId"], made["InstanceType"]) == (baked["ImageId"], "t3.micro")
    assert made["MetadataOptions"]["HttpTokens"] == "optional"
    assert made["MetadataOptions"]["HttpPutResponseHopLimit"] == 2


def test_a_parameter_of_text_names_no_image(client: Callable[..., Any], parent: str) -> None:
    client("ssm").put_parameter(Name="/text", Value=parent, Type="String")
    with pytest.raises(ClientError, match="not of the data type aws:ec2:image"):
        client("ec2").run_instances(ImageId="resolve:ssm:/text", MinCount=1, MaxCount=1)


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("k" * 128, "v" * 256, None),
        ("k" * 129, "v", "key exceeds the maximum length of 128"),
        ("k", "v" * 257, "value exceeds the maximum length of 256"),
        ("aws:k", "v", "reserved for internal use"),
    ],
)
def test_a_tag_that_ec2_does_not_take_is_refused(
    ec2: Any, key: str, value: str, refusal: str | None
) -> None:
    tags = {"Tags": [{"Key": key, "Value": value}]}
    group = ec2.create_security_group(GroupName=f"{key}{value}"[:250], Description="x")["GroupId"]
    volume = {"AvailabilityZone": "us-east-1a", "Size": 1}
    specified = [{"ResourceType": "volume", **tags}]
    for ask in (
        partial(ec2.create_tags, Resources=[group], **tags),
        partial(ec2.create_volume, **volume, TagSpecifications=specified),
    ):
        with pytest.raises(ClientError, match=refusal) if refusal else nullcontext():
            ask()


def test_a_launch_template_may_name_a_parameter(ec2: Any, parent: str) -> None:
    ec2.create_launch_template(
        LaunchTemplateName="by-parameter",
        LaunchTemplateData={"ImageId": f"resolve:ssm:{AL2023}", "InstanceType": "t3.micro"},
    )
    made = launched(ec2, LaunchTemplate={"LaunchTemplateName": "by-parameter"})
    assert made["ImageId"] == parent


def test_an_auto_scaling_group_launches_from_the_template(
    client: Callable[..., Any], ec2: Any, template: str, parent: str
) -> None:
    groups = client("autoscaling")
    groups.create_auto_scaling_group(
        AutoScalingGroupName="group",
        MinSize=1,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateName": template, "Version": "$Latest"},
        AvailabilityZones=["us-east-1a"],
    )
    (group,) = groups.describe_auto_scaling_groups()["AutoScalingGroups"]
    made = group["Instances"][0]["InstanceId"]
    found = ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]
    assert found["ImageId"] == parent
    assert found["MetadataOptions"]["HttpTokens"] == "required"


def test_a_launch_without_an_image_names_what_is_missing(ec2: Any) -> None:
    ec2.create_launch_template(
        LaunchTemplateName="no-image", LaunchTemplateData={"InstanceType": "t3.micro"}
    )
    for how in ({}, {"LaunchTemplate": {"LaunchTemplateName": "no-image"}}):
        with pytest.raises(ClientError, match=r"MissingParameter.*ImageId"):
            ec2.run_instances(MinCount=1, MaxCount=1, InstanceType="t3.micro", **how)


def test_three_images_in_a_row_are_all_made(ec2: Any, parent: str) -> None:
    instance = launched(ec2, ImageId=parent, InstanceType="t3.micro")["InstanceId"]
    made = [
        ec2.create_image(InstanceId=instance, Name=f"row-{number}")["ImageId"]
        for number in range(3)
    ]
    for image_id in made:
        until(lambda image_id=image_id: image(ec2, image_id)["State"], "available", "failed")
    assert [image(ec2, image_id)["State"] for image_id in made] == ["available"] * 3
    for image_id in made:
        assert launched(ec2, ImageId=image_id, InstanceType="t3.micro")


def test_an_instance_that_is_off_can_be_imaged_twice(ec2: Any, parent: str) -> None:
    instance = launched(ec2, ImageId=parent, InstanceType="t3.micro")["InstanceId"]
    ec2.stop_instances(InstanceIds=[instance])

    def state() -> str:
        asked = ec2.describe_instances(InstanceIds=[instance])
        return str(asked["Reservations"][0]["Instances"][0]["State"]["Name"])

    until(state, "stopped")
    for number in range(2):
        made = ec2.create_image(InstanceId=instance, Name=f"off-{number}")["ImageId"]
        until(lambda made=made: image(ec2, made)["State"], "available", "failed")
        assert image(ec2, made)["State"] == "available"
    assert state() == "stopped"


def test_what_is_new_is_unknown_for_a_moment_and_the_seed_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"i-{number:017x}" for number in range(20)]

    def unknown(seed: str) -> list[str]:
        monkeypatch.setattr(consistency, "_seed", seed)
        monkeypatch.setattr(consistency, "_numbers", itertools.count(1))
        monkeypatch.setattr(consistency, "_seen_from", {})
        instances = [SimpleNamespace(id=name) for name in names]
        consistency.note("RunInstances", SimpleNamespace(instances=instances))
        return [name for name in names if not consistency.is_known(name)]

    assert unknown("none") == []
    new = unknown("one")
    assert 0 < len(new) < len(names) and new == unknown("one") != unknown("two")
    new = unknown("one")
    with pytest.raises(EC2ClientError, match="does not exist"):
        consistency.require_known({"InstanceIds": new})
    shown = {"Reservations": [SimpleNamespace(instances=[SimpleNamespace(id=new[0])])]}
    consistency.hide("DescribeInstances", shown)
    assert shown == {"Reservations": []}
    later = time.monotonic() + 10
    monkeypatch.setattr(consistency.time, "monotonic", lambda: later)
    consistency.require_known({"InstanceIds": new})


NOT_IMPLEMENTED: list[tuple[str, str, dict[str, Any]]] = [
    ("ec2", "export_image", {"DiskImageFormat": "RAW", "ImageId": "PARENT",
                             "S3ExportLocation": {"S3Bucket": "b"}}),
    ("ec2", "create_replace_root_volume_task", {"InstanceId": "i-0123456789abcdef0"}),
    ("ec2", "create_ipam", {}),
    ("ec2", "register_image", {"Name": "new"}),
]  # fmt: skip


@pytest.mark.parametrize(("service", "call", "how"), NOT_IMPLEMENTED)
def test_what_is_not_implemented_is_refused_by_name_and_not_tried_again(
    client: Callable[..., Any], parent: str, service: str, call: str, how: dict[str, Any]
) -> None:
    asked = {key: parent if value == "PARENT" else value for key, value in how.items()}
    with pytest.raises(ClientError) as refused:
        getattr(client(service), call)(**asked)
    answer = refused.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert answer["Error"]["Code"] == "UnsupportedOperation"
    assert refused.value.operation_name in answer["Error"]["Message"]


def test_an_action_that_ec2_does_not_have_is_invalid(ec2: Any) -> None:
    def rename(request: Any, **_: Any) -> None:
        request.data["Action"] = "DescribeNonsense"

    ec2.meta.events.register_first("request-created.ec2.DescribeVolumes", rename)
    try:
        with pytest.raises(ClientError, match=r"InvalidAction.*DescribeNonsense"):
            ec2.describe_volumes()
    finally:
        ec2.meta.events.unregister("request-created.ec2.DescribeVolumes", rename)


@pytest.mark.parametrize(
    ("service", "call", "how"),
    [
        ("ssm", "describe_automation_executions", {}),
        ("cloudformation", "create_stack", {"StackName": "a", "TemplateBody": "{}"}),
        ("codebuild", "start_build_batch", {"projectName": "nights"}),
        (
            "cloudwatch",
            "put_metric_alarm",
            {"AlarmName": "a", "EvaluationPeriods": 1, "ComparisonOperator": "LessThanThreshold"},
        ),
        ("logs", "start_query", {"startTime": 0, "endTime": 1, "queryString": "fields a"}),
        (
            "ec2-instance-connect",
            "send_ssh_public_key",
            {"InstanceId": "i-0123456789abcdef0", "InstanceOSUser": "u", "SSHPublicKey": "k" * 80},
        ),
    ],
)
def test_other_services_refuse_in_their_own_form(
    client: Callable[..., Any], service: str, call: str, how: dict[str, Any]
) -> None:
    with pytest.raises(ClientError) as refused:
        getattr(client(service), call)(**how)
    answer = refused.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert refused.value.operation_name in answer["Error"]["Message"]


def test_an_answer_without_a_type_is_not_taken_for_a_page(client: Callable[..., Any]) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="here")
    with pytest.raises(ClientError) as refused:
        s3.head_object(Bucket="here", Key="not-here")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_a_line_of_a_log_that_looks_like_a_form_is_a_line_of_a_log(
    client: Callable[..., Any],
) -> None:
    """It named the call that moto made, whatever call the policies were asked about."""
    logs = client("logs")
    for name in ("kept", "other"):
        logs.create_log_group(logGroupName=name)
    logs.create_log_stream(logGroupName="kept", logStreamName="s")
    line = "GET /?a=1&Action=DeleteLogGroup&logGroupName=other&b=2"
    now = int(time.time() * 1000)
    logs.put_log_events(
        logGroupName="kept", logStreamName="s", logEvents=[{"timestamp": now, "message": line}]
    )
    names = [group["logGroupName"] for group in logs.describe_log_groups()["logGroups"]]
    assert {"kept", "other"} <= set(names)
    (event,) = logs.get_log_events(logGroupName="kept", logStreamName="s")["events"]
    assert event["message"] == line


def test_the_log_of_all_these_calls_holds_no_traceback(
    client: Callable[..., Any], folder: Path
) -> None:
    client("ec2").describe_images()
    assert "Traceback" not in (folder / "log").read_text()


def test_preflight_asks_for_the_parents_of_all_rows_where_there_are_credentials(
    client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = load_recipes()
    (endpoint,) = client.args  # type: ignore[attr-defined]
    keys = {"aws_access_key_id": "KILN", "aws_secret_access_key": "secret"}
    monkeypatch.setattr(Target, "client_settings", lambda _: {"endpoint_url": endpoint, **keys})
    # Clients are kept per target: this one is nobody else's.
    target = Target("the lab's API of this test", "us-east-1")
    answers = [ask_parent(recipe, target) for recipe in recipes]
    assert {answer.state for answer in answers} == {State.PUBLISHED}
    assert all(str(answer.ami).startswith("ami-") for answer in answers)

    gone = recipes[0].changed(source_ami=SourceAmi(ssm_parameter="/aws/service/no-such"))
    answer = ask_parent(gone, target)
    assert answer.state is State.MISSING
    assert "ssm:/aws/service/no-such: SSM has no such parameter" in answer.detail


# ---------------------------------------------------------------- capacity reservations


def test_a_capacity_reservation_serves_launches_of_its_type_until_it_is_full(
    ec2: Any, parent: str
) -> None:
    made = ec2.create_capacity_reservation(
        InstanceType="g4dn.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]
    name = made["CapacityReservationId"]
    found = ec2.describe_subnets()["Subnets"]
    subnets = {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in found}
    ids = {subnet["AvailabilityZone"]: subnet["AvailabilityZoneId"] for subnet in found}

    def left() -> int:
        (shown,) = ec2.describe_capacity_reservations(CapacityReservationIds=[name])[
            "CapacityReservations"
        ]
        return int(shown["AvailableInstanceCount"])

    def launch(kind: str, into: str = name, zone: str = "us-east-1a") -> Any:
        target = {"CapacityReservationTarget": {"CapacityReservationId": into}}
        return ec2.run_instances(
            ImageId=parent,
            InstanceType=kind,
            MinCount=1,
            MaxCount=1,
            CapacityReservationSpecification=target,
            SubnetId=subnets[zone],
        )["Instances"][0]

    assert left() == 1
    assert made["AvailabilityZoneId"] == ids["us-east-1a"]
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        launch("g4dn.xlarge", zone="us-east-1b")
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        launch("g5.xlarge")
    first = launch("g4dn.xlarge")
    assert first["CapacityReservationId"] == name
    assert left() == 0
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        launch("g4dn.xlarge")
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    assert left() == 1
    ec2.cancel_capacity_reservation(CapacityReservationId=name)
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        launch("g4dn.xlarge")
    with pytest.raises(ClientError, match=r"InvalidCapacityReservationId\.NotFound"):
        launch("g4dn.xlarge", "cr-0123456789abcdef0")


ECS_AMI = "/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id"
EKS_AMI = "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/standard/recommended"


@pytest.mark.parametrize(
    ("parameter", "disk", "code", "words"),
    [
        (ECS_AMI, {"VolumeSize": 29}, "InvalidBlockDeviceMapping", "expect size >= 30GB"),
        (f"{EKS_AMI}/image_id", {"VolumeSize": 19}, "InvalidBlockDeviceMapping", ">= 20GB"),
        (AL2023, {"VolumeSize": 20, "VolumeType": "gp3", "Iops": 16000},
         "InvalidParameterValue", "ratio of 800.000000 is too high; maximum is 500"),
        (AL2023, {"VolumeType": "gp3", "Iops": 3000, "Throughput": 1000},
         "InvalidParameterValue", "ratio of 0.333333 is too high; maximum is 0.250000"),
    ],
)  # fmt: skip
def test_a_root_volume_that_ec2_cannot_make_is_refused(
    client: Callable[..., Any], parameter: str, disk: dict[str, Any], code: str, words: str
) -> None:
    ami = client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    ec2 = client("ec2")
    device = image(ec2, ami)["RootDeviceName"]
    with pytest.raises(ClientError, match=words) as refused:
        launched(
            ec2, ImageId=ami, InstanceType="t3.micro",
            BlockDeviceMappings=[{"DeviceName": device, "Ebs": disk}],
        )  # fmt: skip
    assert refused.value.response["Error"]["Code"] == code


def test_metric_of_another_namespace_does_not_count(client: Callable[..., Any]) -> None:
    watch, now = client("cloudwatch"), datetime.now(timezone.utc).replace(second=0, microsecond=0)
    one = {"MetricName": "used", "Dimensions": [{"Name": "InstanceId", "Value": "i-1"}]}
    for namespace, value in (("Ours", 1), ("Theirs", 9)):
        datum = {**one, "Value": value, "Timestamp": now}
        watch.put_metric_data(Namespace=namespace, MetricData=[datum])
    stat = {"Metric": {"Namespace": "Ours", **one}, "Period": 60, "Stat": "Maximum"}
    (found,) = watch.get_metric_data(
        MetricDataQueries=[{"Id": "m", "MetricStat": stat}],
        StartTime=now - timedelta(minutes=1),
        EndTime=now + timedelta(minutes=1),
    )["MetricDataResults"]
    assert (found["Values"], found["Timestamps"]) == ([1], [now])
