"""Instances, their volumes and AMIs, however they are launched: alone, by fleets, by groups."""

from __future__ import annotations

from typing import Any

import pytest

ROOT = "/dev/xvda"


@pytest.fixture(scope="module")
def template(ec2: Any, parent: str, client: Any) -> str:
    """A launch template whose second version, not the default one, requires tokens."""
    ec2.create_launch_template(
        LaunchTemplateName="fleet",
        LaunchTemplateData={"ImageId": parent, "InstanceType": "g4dn.xlarge"},
    )
    ec2.create_launch_template_version(
        LaunchTemplateName="fleet",
        LaunchTemplateData={
            "ImageId": parent,
            "InstanceType": "t3.small",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
            "BlockDeviceMappings": [{"DeviceName": ROOT, "Ebs": {"VolumeSize": 33}}],
            "InstanceInitiatedShutdownBehavior": "terminate",
        },
    )
    return "fleet"


def is_of_the_template(ec2: Any, made: Any) -> None:
    options = made["MetadataOptions"]
    assert (options["HttpTokens"], options["HttpPutResponseHopLimit"]) == ("required", 2)
    (device,) = made["BlockDeviceMappings"]
    volume = ec2.describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"][0]
    assert (volume["Size"], device["Ebs"]["DeleteOnTermination"]) == (33, True)
    assert [group["GroupName"] for group in made["SecurityGroups"]] == ["default"]


@pytest.mark.parametrize("kind", ["spot", "on-demand"])
def test_a_fleets_instances_have_their_templates_options(
    ec2: Any, walk: Any, template: str, kind: str
) -> None:
    fleet = ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "2"},
                "Overrides": [{"InstanceType": "t3.medium"}],
            }
        ],
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": kind},
    )
    made = walk.until(fleet["Instances"][0]["InstanceIds"][0], "running")
    assert made["InstanceType"] == "t3.medium"
    is_of_the_template(ec2, made)
    assert made.get("InstanceLifecycle") == ("spot" if kind == "spot" else None)


def test_a_spot_instance_knows_its_request(ec2: Any, walk: Any, template: str) -> None:
    fleet = ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[
            {"LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "2"}}
        ],
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
    )
    made = walk.instance(fleet["Instances"][0]["InstanceIds"][0])
    request = made["SpotInstanceRequestId"]
    ec2.create_tags(Resources=[request], Tags=[{"Key": "team", "Value": "ml"}])
    found = ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[request])
    assert found["SpotInstanceRequests"][0]["InstanceId"] == made["InstanceId"]
    assert found["SpotInstanceRequests"][0]["State"] == "active"
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    found = ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[request])
    (after,) = found["SpotInstanceRequests"]
    assert (after["State"], after["Status"]["Code"]) == ("closed", "instance-terminated-by-user")


def test_an_auto_scaling_group_launches_the_version_it_names(
    client: Any, ec2: Any, walk: Any, template: str
) -> None:
    groups = client("autoscaling")
    groups.create_auto_scaling_group(
        AutoScalingGroupName="second",
        MinSize=1,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateName": template, "Version": "2"},
        AvailabilityZones=["us-east-1a"],
    )
    (group,) = groups.describe_auto_scaling_groups()["AutoScalingGroups"]
    made = walk.instance(group["Instances"][0]["InstanceId"])
    assert made["InstanceType"] == "t3.small"
    is_of_the_template(ec2, made)


def test_an_auto_scaling_group_goes_out_and_in_and_takes_its_instances_with_it(
    client: Any, ec2: Any, walk: Any, template: str
) -> None:
    groups = client("autoscaling")
    named = {"AutoScalingGroupName": "breathing"}
    groups.create_auto_scaling_group(
        **named,
        MinSize=0,
        MaxSize=3,
        DesiredCapacity=1,
        LaunchTemplate={"LaunchTemplateName": template, "Version": "$Default"},
        AvailabilityZones=["us-east-1a"],
        Tags=[{"Key": "team", "Value": "ml", "PropagateAtLaunch": True}],
    )

    def members() -> list[str]:
        (found,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["breathing"])[
            "AutoScalingGroups"
        ]
        return [instance["InstanceId"] for instance in found["Instances"]]

    (first,) = members()
    tags = {tag["Key"]: tag["Value"] for tag in walk.until(first, "running")["Tags"]}
    assert (tags["team"], tags["aws:autoscaling:groupName"]) == ("ml", "breathing")
    groups.update_auto_scaling_group(
        **named, LaunchTemplate={"LaunchTemplateName": template, "Version": "2"}
    )
    groups.set_desired_capacity(**named, DesiredCapacity=3)
    added = [member for member in members() if member != first]
    assert [walk.until(instance_id, "running")["InstanceType"] for instance_id in added] == [
        "t3.small"
    ] * 2
    how = {"InstanceId": first, "ShouldDecrementDesiredCapacity": True}
    groups.terminate_instance_in_auto_scaling_group(**how)
    walk.until(first, "terminated")
    assert sorted(members()) == sorted(added)
    groups.delete_auto_scaling_group(**named, ForceDelete=True)
    for instance_id in added:
        walk.until(instance_id, "terminated")


TWO = [
    {"DeviceName": ROOT, "Ebs": {"VolumeSize": 20}},
    {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 5, "VolumeType": "gp3"}},
]


def devices(thing: Any) -> list[str]:
    return sorted(disk["DeviceName"] for disk in thing["BlockDeviceMappings"])


def test_an_image_keeps_the_second_volume_and_gives_it_to_its_instances(
    ec2: Any, walk: Any
) -> None:
    made = walk.launched(BlockDeviceMappings=TWO)
    image = walk.baked(InstanceId=made["InstanceId"])
    sizes = {disk["DeviceName"]: disk["Ebs"]["VolumeSize"] for disk in image["BlockDeviceMappings"]}
    assert sizes == {ROOT: 20, "/dev/sdb": 5}
    snapshots = [disk["Ebs"]["SnapshotId"] for disk in image["BlockDeviceMappings"]]
    assert len(ec2.describe_snapshots(SnapshotIds=snapshots)["Snapshots"]) == 2
    again = walk.launched(ImageId=image["ImageId"])
    assert devices(again) == ["/dev/sdb", ROOT]
    without = walk.launched(
        ImageId=image["ImageId"],
        BlockDeviceMappings=[{"DeviceName": "/dev/sdb", "NoDevice": ""}],
    )
    assert devices(without) == [ROOT]


def test_create_image_adds_and_leaves_out_volumes(walk: Any) -> None:
    made = walk.launched(BlockDeviceMappings=TWO)
    image = walk.baked(
        InstanceId=made["InstanceId"],
        BlockDeviceMappings=[
            {"DeviceName": "/dev/sdb", "NoDevice": ""},
            {"DeviceName": "/dev/sdc", "Ebs": {"VolumeSize": 7}},
        ],
    )
    assert devices(image) == ["/dev/sdc", ROOT]


def test_a_copy_has_the_second_volume_too(client: Any, walk: Any) -> None:
    made = walk.launched(BlockDeviceMappings=TWO)
    image = walk.baked(InstanceId=made["InstanceId"])
    there = client("ec2", "eu-west-1")
    copied = there.copy_image(
        SourceImageId=image["ImageId"], SourceRegion="us-east-1", Name="two", Encrypted=True
    )["ImageId"]
    found = there.describe_images(ImageIds=[copied])["Images"][0]
    assert devices(found) == ["/dev/sdb", ROOT]
    assert all(disk["Ebs"]["Encrypted"] for disk in found["BlockDeviceMappings"])


def test_volumes_go_with_their_instance_unless_they_are_kept(ec2: Any, walk: Any) -> None:
    kept = {"VolumeSize": 5, "DeleteOnTermination": False}
    made = walk.launched(
        BlockDeviceMappings=[
            {"DeviceName": ROOT, "Ebs": {"VolumeType": "gp3"}},
            {"DeviceName": "/dev/sdb", "Ebs": kept},
        ]
    )
    ids = {disk["DeviceName"]: disk["Ebs"]["VolumeId"] for disk in made["BlockDeviceMappings"]}
    walk.terminated(made["InstanceId"])
    left = {volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]}
    assert ids["/dev/sdb"] in left
    assert ids[ROOT] not in left


def test_attaching_a_disk_is_refused(ec2: Any, walk: Any, refused: Any) -> None:
    made = walk.launched()
    volume = ec2.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    attach = {"VolumeId": volume, "InstanceId": made["InstanceId"], "Device": "/dev/sdf"}
    assert refused(ec2.attach_volume, **attach)[0] == "UnsupportedOperation"


@pytest.mark.parametrize("device", ["/dev/../etc/cron.d/x", "sdf=8:0", "/dev/disk", "/dev/sdf/x"])
def test_a_device_has_a_name_of_ec2s_and_leads_to_no_other_file(
    device: str, ec2: Any, walk: Any, refused: Any
) -> None:
    launch = {"ImageId": walk.parent, "InstanceType": "t2.micro", "MinCount": 1, "MaxCount": 1}
    devices = [{"DeviceName": device, "Ebs": {"VolumeSize": 1}}]
    assert refused(ec2.run_instances, BlockDeviceMappings=devices, **launch) == (
        "InvalidBlockDeviceMapping",
        f"Invalid device name {device}",
    )


def test_a_report_says_who_uses_an_image(ec2: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    walk.launched(ImageId=image)
    template = {"ImageId": image}
    ec2.create_launch_template(LaunchTemplateName="of-it", LaunchTemplateData=template)
    kinds = [{"ResourceType": "ec2:Instance"}, {"ResourceType": "ec2:LaunchTemplate"}]
    report = ec2.create_image_usage_report(ImageId=image, ResourceTypes=kinds)["ReportId"]
    shown = ec2.describe_image_usage_reports(ReportIds=[report])["ImageUsageReports"]
    assert [(entry["ImageId"], entry["State"]) for entry in shown] == [(image, "available")]
    entries = ec2.describe_image_usage_report_entries(ReportIds=[report])
    counts = {
        entry["ResourceType"]: entry["UsageCount"] for entry in entries["ImageUsageReportEntries"]
    }
    assert counts == {"ec2:Instance": 1, "ec2:LaunchTemplate": 1}
