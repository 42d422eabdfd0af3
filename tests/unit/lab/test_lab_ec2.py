"""Launches of the lab, without guests: public images, parameters, templates, fleets, capacity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kiln.base.recipe import SourceAmi
from kiln.cloud.target import Target
from kiln.matrix.load import load_recipes
from kiln.preflight.ask import ask_parent
from kiln.preflight.indexes import State

pytestmark = pytest.mark.slow
AL2023 = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64"
UBUNTU = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-"


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64", "al2023-ami-2023"),
        (
            "eks/optimized-ami/1.35/amazon-linux-2023/arm64/standard/recommended/image_id",
            "amazon-eks-node-al2023-arm64-standard-1.35-v",
        ),
        # A serial stands where `current` does.
        ("canonical/ubuntu/server/24.04/stable/20260930/amd64/hvm/ebs-gp3/ami-id", UBUNTU),
    ],
)
def test_public_parameter_names_an_image_in_every_region(
    client: Callable[..., Any], name: str, begins: str
) -> None:
    for region in ("us-east-1", "eu-north-1"):
        asked = client("ssm", region).get_parameter(Name=f"/aws/service/{name}")["Parameter"]
        (image,) = client("ec2", region).describe_images(ImageIds=[asked["Value"]])["Images"]
        assert image["Name"].startswith(begins)


def test_preflight_finds_the_parents_of_all_rows(
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
    assert ask_parent(gone, target).state is State.MISSING


def test_instance_is_launched_from_an_image_parameter(
    client: Callable[..., Any], walk: Any, parent: str, refused: Any
) -> None:
    ssm = client("ssm")
    ssm.put_parameter(Name="/mine/golden", Value=parent, Type="String", DataType="aws:ec2:image")
    ssm.put_parameter(Name="/text", Value=parent, Type="String")
    for name in (AL2023, f"{AL2023}:1", "/mine/golden"):
        assert walk.launched(ImageId=f"resolve:ssm:{name}")["ImageId"] == parent
    for name in ("/mine/none", "/text"):
        code, _ = refused(walk.launched, ImageId=f"resolve:ssm:{name}")
        assert code == "InvalidParameterValue"


@pytest.fixture(scope="module")
def template(account: Any, parent: str) -> str:
    """A launch template whose second version, not the default one, requires tokens."""
    account.create_launch_template(
        LaunchTemplateName="fleet",
        LaunchTemplateData={"ImageId": parent, "InstanceType": "g4dn.xlarge"},
    )
    account.create_launch_template_version(
        LaunchTemplateName="fleet",
        LaunchTemplateData={
            "ImageId": parent,
            "InstanceType": "t3.small",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
            "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 33}}],
            "InstanceInitiatedShutdownBehavior": "terminate",
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "ml"}]}
            ],
        },
    )
    return "fleet"


def is_of_the_template(ec2: Any, made: Any) -> None:
    options = made["MetadataOptions"]
    assert (options["HttpTokens"], options["HttpPutResponseHopLimit"]) == ("required", 2)
    assert {"Key": "team", "Value": "ml"} in made["Tags"]
    (device,) = made["BlockDeviceMappings"]
    volume = ec2.describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"][0]
    assert (volume["Size"], device["Ebs"]["DeleteOnTermination"]) == (33, True)
    asked = {"InstanceId": made["InstanceId"], "Attribute": "instanceInitiatedShutdownBehavior"}
    behavior = ec2.describe_instance_attribute(**asked)["InstanceInitiatedShutdownBehavior"]
    assert behavior["Value"] == "terminate"


def test_instance_is_what_its_launch_template_says(account: Any, walk: Any, template: str) -> None:
    named = {"LaunchTemplateName": template}
    for version in ("2", "$Latest"):
        made = walk.launched(LaunchTemplate={**named, "Version": version})
        assert made["InstanceType"] == "t3.small"
        is_of_the_template(account, made)
    changed = walk.launched(LaunchTemplate={**named, "Version": "$Default"}, InstanceType="t3.nano")
    assert changed["InstanceType"] == "t3.nano"


def test_spot_fleet_instances_have_their_templates_options(
    account: Any, walk: Any, template: str, refused: Any
) -> None:
    of_template = {"LaunchTemplateName": template, "Version": "2"}
    overrides = [{"InstanceType": "t3.medium"}]
    config = {"LaunchTemplateSpecification": of_template, "Overrides": overrides}
    asked = {"Type": "instant", "LaunchTemplateConfigs": [config]}
    spot, other = (
        {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": kind}
        for kind in ("spot", "on-demand")
    )
    fleet = account.create_fleet(**asked, TargetCapacitySpecification=spot)
    made = walk.until(fleet["Instances"][0]["InstanceIds"][0], "running")
    assert made["InstanceType"] == "t3.medium"
    is_of_the_template(account, made)
    assert made.get("InstanceLifecycle") == "spot"
    answer = refused(account.create_fleet, **asked, TargetCapacitySpecification=other)
    assert answer[0] == "UnsupportedOperation"


def test_auto_scaling_group_launches_and_ends_its_instances(
    client: Callable[..., Any], walk: Any, template: str
) -> None:
    groups, named = client("autoscaling"), {"AutoScalingGroupName": "breathing"}
    groups.create_auto_scaling_group(
        **named,
        MinSize=0,
        MaxSize=3,
        DesiredCapacity=1,
        LaunchTemplate={"LaunchTemplateName": template, "Version": "$Default"},
        AvailabilityZones=["us-east-1a"],
        Tags=[{"Key": "group", "Value": "one", "PropagateAtLaunch": True}],
    )

    def members() -> list[str]:
        (found,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["breathing"])[
            "AutoScalingGroups"
        ]
        return [instance["InstanceId"] for instance in found["Instances"]]

    (first,) = members()
    tags = {tag["Key"]: tag["Value"] for tag in walk.until(first, "running")["Tags"]}
    assert (tags["group"], tags["aws:autoscaling:groupName"]) == ("one", "breathing")
    newer = {"LaunchTemplateName": template, "Version": "2"}
    groups.update_auto_scaling_group(**named, LaunchTemplate=newer)
    groups.set_desired_capacity(**named, DesiredCapacity=2)
    (added,) = (member for member in members() if member != first)
    assert walk.until(added, "running")["InstanceType"] == "t3.small"
    groups.delete_auto_scaling_group(**named, ForceDelete=True)
    for instance_id in (first, added):
        walk.until(instance_id, "terminated")


def test_a_second_disk_is_refused(account: Any, walk: Any, refused: Any) -> None:
    volume = account.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    attach = {"VolumeId": volume, "InstanceId": walk.launched()["InstanceId"], "Device": "/dev/sdf"}
    assert refused(account.attach_volume, **attach)[0] == "UnsupportedOperation"
    second = [{"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 1}}]
    assert refused(walk.launched, BlockDeviceMappings=second)[0] == "UnsupportedOperation"


@pytest.mark.parametrize("device", ["/dev/../etc/cron.d/x", "sdf=8:0", "/dev/sdf/x"])
def test_device_name_leads_to_no_other_file(device: str, walk: Any, refused: Any) -> None:
    devices = [{"DeviceName": device, "Ebs": {"VolumeSize": 1}}]
    code, _ = refused(walk.launched, BlockDeviceMappings=devices)
    assert code == "InvalidBlockDeviceMapping"


def test_capacity_reservation_serves_launches_until_full(
    account: Any, walk: Any, refused: Any
) -> None:
    asked = {"InstanceType": "g4dn.xlarge", "InstancePlatform": "Linux/UNIX", "InstanceCount": 1}
    made = account.create_capacity_reservation(
        **asked, AvailabilityZone="us-east-1a", InstanceMatchCriteria="targeted"
    )["CapacityReservation"]
    name = made["CapacityReservationId"]
    found = account.describe_subnets()["Subnets"]
    subnets = {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in found}
    here = {"InstanceType": "g4dn.xlarge", "SubnetId": subnets["us-east-1a"]}

    def into(reservation: str) -> dict[str, Any]:
        target = {"CapacityReservationTarget": {"CapacityReservationId": reservation}}
        return {"CapacityReservationSpecification": target}

    def left() -> int:
        shown = account.describe_capacity_reservations(CapacityReservationIds=[name])
        return int(shown["CapacityReservations"][0]["AvailableInstanceCount"])

    full = "ReservationCapacityExceeded"
    assert left() == 1
    for wrong in ({"SubnetId": subnets["us-east-1b"]}, {"InstanceType": "g5.xlarge"}):
        assert refused(walk.launched, **into(name), **(here | wrong))[0] == full
    first = walk.launched(**into(name), **here)
    assert (first["CapacityReservationId"], left()) == (name, 0)
    assert refused(walk.launched, **into(name), **here)[0] == full
    walk.terminated(first["InstanceId"])
    assert left() == 1
    code, _ = refused(walk.launched, **into("cr-0123456789abcdef0"), **here)
    assert code == "InvalidCapacityReservationId.NotFound"


EKS_AMI = "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/standard/recommended"


@pytest.mark.parametrize(
    ("parameter", "disk", "words"),
    [
        (f"{EKS_AMI}/image_id", {"VolumeSize": 19}, ">= 20GB"),
        (
            AL2023,
            {"VolumeSize": 20, "VolumeType": "gp3", "Iops": 16000},
            "ratio of 800.000000 is too high",
        ),
    ],
    ids=["size", "iops"],
)
def test_impossible_root_volume_is_refused(
    client: Callable[..., Any],
    walk: Any,
    refused: Any,
    parameter: str,
    disk: dict[str, Any],
    words: str,
) -> None:
    ami = client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    devices = [{"DeviceName": walk.image(ami)["RootDeviceName"], "Ebs": disk}]
    code, message = refused(walk.launched, ImageId=ami, BlockDeviceMappings=devices)
    assert code in ("InvalidBlockDeviceMapping", "InvalidParameterValue")
    assert words in message


def test_parameters_have_the_limits_of_ssm(client: Callable[..., Any], parent: str) -> None:
    ssm = client("ssm")
    with pytest.raises(ClientError, match="4096"):
        ssm.put_parameter(Name="/long", Type="String", Value="a" * 4097)
    ssm.put_parameter(Name="/long", Type="String", Value="a" * 4097, Tier="Advanced")
    image: dict[str, Any] = {"Name": "/mine/image", "Type": "String", "DataType": "aws:ec2:image"}
    with pytest.raises(ClientError, match="not the id of an AMI"):
        ssm.put_parameter(**image, Value="ami-1")
    # AWS looks after its answer whether there is such an AMI.
    ssm.put_parameter(**image, Value="ami-0123456789abcdef0")
    with pytest.raises(ClientError, match="ParameterNotFound"):
        ssm.get_parameter(Name="/mine/image")
    ssm.put_parameter(**image, Value=parent)
    ssm.put_parameter(**image, Value="ami-0123456789abcdef0", Overwrite=True)
    assert ssm.get_parameter(Name="/mine/image")["Parameter"]["Value"] == parent
    ssm.delete_parameters(Names=["/long", "/mine/image"])
