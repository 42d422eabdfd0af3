"""What EC2 refuses, the lab refuses, with the same code.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

NOWHERE = "0123456789abcdef0"

MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    ("describe_images", {"ImageIds": ["ami-xyz"]}, "InvalidAMIID.Malformed"),
    ("describe_images", {"ImageIds": ["i-0123456789abcdef0"]}, "InvalidAMIID.Malformed"),
    ("deregister_image", {"ImageId": "golden"}, "InvalidAMIID.Malformed"),
    ("enable_image_deprecation", {"ImageId": "ami-1", "DeprecateAt": "2030-01-01T00:00:00Z"},
     "InvalidAMIID.Malformed"),
    ("run_instances", {"ImageId": "ami", "MinCount": 1, "MaxCount": 1}, "InvalidAMIID.Malformed"),
    ("describe_instances", {"InstanceIds": ["i-12"]}, "InvalidInstanceID.Malformed"),
    ("stop_instances", {"InstanceIds": ["web-1"]}, "InvalidInstanceID.Malformed"),
    ("create_image", {"InstanceId": "i-", "Name": "any"}, "InvalidInstanceID.Malformed"),
    ("describe_volumes", {"VolumeIds": ["vol-zz"]}, "InvalidVolumeID.Malformed"),
    ("describe_snapshots", {"SnapshotIds": ["snap-zz"]}, "InvalidSnapshotID.Malformed"),
    ("delete_snapshot", {"SnapshotId": "vol-0123456789abcdef0"}, "InvalidSnapshotID.Malformed"),
    ("describe_launch_template_versions", {"LaunchTemplateId": "lt-q"},
     "InvalidLaunchTemplateId.Malformed"),
]  # fmt: skip
UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("describe_images", {"ImageIds": [f"ami-{NOWHERE}"]}, "InvalidAMIID.NotFound"),
    ("describe_images", {"ImageIds": ["PARENT", f"ami-{NOWHERE}"]}, "InvalidAMIID.NotFound"),
    ("describe_image_attribute", {"ImageId": f"ami-{NOWHERE}", "Attribute": "bootMode"},
     "InvalidAMIID.NotFound"),
    ("modify_image_attribute", {"ImageId": f"ami-{NOWHERE}", "Description": {"Value": "x"}},
     "InvalidAMIID.NotFound"),
    ("deregister_image", {"ImageId": f"ami-{NOWHERE}"}, "InvalidAMIID.NotFound"),
    ("disable_image", {"ImageId": f"ami-{NOWHERE}"}, "InvalidAMIID.NotFound"),
    ("run_instances", {"ImageId": f"ami-{NOWHERE}", "MinCount": 1, "MaxCount": 1},
     "InvalidAMIID.NotFound"),
    ("describe_instances", {"InstanceIds": [f"i-{NOWHERE}"]}, "InvalidInstanceID.NotFound"),
    ("get_console_output", {"InstanceId": f"i-{NOWHERE}"}, "InvalidInstanceID.NotFound"),
    ("create_image", {"InstanceId": f"i-{NOWHERE}", "Name": "any"}, "InvalidInstanceID.NotFound"),
    ("describe_volumes", {"VolumeIds": [f"vol-{NOWHERE}"]}, "InvalidVolume.NotFound"),
    ("delete_volume", {"VolumeId": f"vol-{NOWHERE}"}, "InvalidVolume.NotFound"),
    ("describe_snapshots", {"SnapshotIds": [f"snap-{NOWHERE}"]}, "InvalidSnapshot.NotFound"),
    ("delete_snapshot", {"SnapshotId": f"snap-{NOWHERE}"}, "InvalidSnapshot.NotFound"),
]  # fmt: skip
FILTERS = [
    "describe_images",
    "describe_instances",
    "describe_instance_status",
    "describe_key_pairs",
    "describe_launch_templates",
    "describe_security_groups",
    "describe_snapshots",
    "describe_subnets",
    "describe_tags",
    "describe_volumes",
    "describe_vpcs",
]


def filled(how: dict[str, Any], parent: str) -> dict[str, Any]:
    text = {"PARENT": parent}
    return {
        key: [text.get(item, item) for item in value] if isinstance(value, list) else value
        for key, value in how.items()
    }


@pytest.mark.parametrize(("call", "how", "code"), MALFORMED)
def test_an_id_that_is_not_of_the_form_is_malformed(
    ec2: Any, refused: Any, call: str, how: dict[str, Any], code: str
) -> None:
    assert refused(getattr(ec2, call), **how)[0] == code


@pytest.mark.parametrize(("call", "how", "code"), UNKNOWN)
def test_an_id_of_nothing_is_not_found(
    ec2: Any, parent: str, refused: Any, call: str, how: dict[str, Any], code: str
) -> None:
    found, message = refused(getattr(ec2, call), **filled(how, parent))
    assert found == code
    assert NOWHERE in message


@pytest.mark.parametrize("call", FILTERS)
def test_a_filter_that_the_call_does_not_have_is_invalid(ec2: Any, refused: Any, call: str) -> None:
    how = {"Filters": [{"Name": "colour", "Values": ["red"]}]}
    code, message = refused(getattr(ec2, call), **how)
    assert (code, message) == ("InvalidParameterValue", "The filter 'colour' is invalid")


@pytest.mark.parametrize("name", ["a" * 129, "what?", "a,b", "äöü"])
def test_a_name_that_no_ami_can_have_is_malformed(walk: Any, ec2: Any, refused: Any, name: str
) -> None:  # fmt: skip
    image = walk.baked()
    how = {"SourceImageId": image["ImageId"], "SourceRegion": "us-east-1", "Name": name}
    assert refused(ec2.copy_image, **how)[0] == "InvalidAMIName.Malformed"
    instance = walk.launched()["InstanceId"]
    made = refused(ec2.create_image, InstanceId=instance, Name=name)
    assert made[0] == "InvalidAMIName.Malformed"


LAUNCHES: list[tuple[str, dict[str, Any], str, str]] = [
    ("an unknown type", {"InstanceType": "t2.gigantic"}, "InvalidParameterValue", "t2.gigantic"),
    ("a type of another processor", {"InstanceType": "t4g.micro"}, "InvalidParameterValue",
     "'arm64' of the specified instance type does not match"),
    ("fewer than at least", {"MinCount": 3, "MaxCount": 2}, "InvalidParameterValue", "3"),
    ("no count", {"MinCount": 0, "MaxCount": 1}, "InvalidParameterValue", "MinCount"),
    ("user data over 16 KB", {"UserData": "x" * 16385}, "InvalidParameterValue",
     "User data is limited to 16384 bytes"),
    ("a root volume smaller than the snapshot",
     {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 4}}]},
     "InvalidBlockDeviceMapping", "expect size >= 8GB"),
    ("a hop limit over 64", {"MetadataOptions": {"HttpPutResponseHopLimit": 65}},
     "InvalidParameterValue", "65"),
    ("a key pair that is not there", {"KeyName": "nobody's"}, "InvalidKeyPair.NotFound", "nobody"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "how", "code", "part"), LAUNCHES)
def test_a_launch_that_cannot_be_is_refused(
    walk: Any, refused: Any, case: str, how: dict[str, Any], code: str, part: str
) -> None:
    found, message = refused(walk.launched, **how)
    assert (found, part in message) == (code, True), (case, found, message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("not base64!", "Invalid BASE64 encoding of user data."),
        (base64.b64encode(b"x" * 16385).decode(), "User data is limited to 16384 bytes"),
    ],
)
def test_a_launch_template_has_a_code_of_its_own_for_user_data(
    ec2: Any, refused: Any, data: str, message: str
) -> None:
    how = {"LaunchTemplateName": "mine", "LaunchTemplateData": {"UserData": data}}
    found = refused(ec2.create_launch_template, **how)
    assert found == ("InvalidUserData.Malformed", message)


def test_user_data_of_16_kilobytes_is_accepted(walk: Any, ec2: Any) -> None:
    made = walk.launched(UserData="x" * 16384)
    shown = ec2.describe_instance_attribute(InstanceId=made["InstanceId"], Attribute="userData")[
        "UserData"
    ]["Value"]
    assert base64.b64decode(shown) == b"x" * 16384


def test_the_same_client_token_launches_once(walk: Any, ec2: Any, refused: Any) -> None:
    first = walk.launched(ClientToken="once")
    assert walk.launched(ClientToken="once")["InstanceId"] == first["InstanceId"]
    other = {"ImageId": walk.parent, "InstanceType": "t3.nano", "MinCount": 1, "MaxCount": 1}
    code, _ = refused(ec2.run_instances, ClientToken="once", **other)
    assert code == "IdempotentParameterMismatch"


def test_an_ami_is_copied_once_by_a_client_that_asks_again_before_it_was_answered(
    ec2: Any, parent: str, refused: Any
) -> None:
    how = {"SourceImageId": parent, "SourceRegion": "us-east-1", "ClientToken": "a copy"}
    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(ec2.copy_image, Name="once", **how) for _ in range(3)]
        made = {request.result()["ImageId"] for request in asked}
    named = ec2.describe_images(Filters=[{"Name": "name", "Values": ["once"]}])["Images"]
    assert {instance["ImageId"] for instance in named} == made
    code, _ = refused(ec2.copy_image, Name="another", **how)
    assert code == "IdempotentParameterMismatch"


def test_a_refused_call_can_be_asked_again_with_its_token(ec2: Any, refused: Any) -> None:
    how = {"AvailabilityZone": "us-east-1a", "ClientToken": "a volume"}
    assert refused(ec2.create_volume, **how)[0] == "MissingParameter"
    made = ec2.create_volume(Size=1, **how)["VolumeId"]
    assert ec2.create_volume(Size=1, **how)["VolumeId"] == made
    ec2.delete_volume(VolumeId=made)


def test_as_many_as_at_most_are_launched(ec2: Any, parent: str) -> None:
    made = ec2.run_instances(ImageId=parent, InstanceType="t3.micro", MinCount=1, MaxCount=3)
    assert [instance["AmiLaunchIndex"] for instance in made["Instances"]] == [0, 1, 2]


def test_a_dry_run_is_only_tried(ec2: Any, walk: Any, refused: Any) -> None:
    image = walk.baked()["ImageId"]
    for call, how in (
        (ec2.deregister_image, {"ImageId": image}),
        (ec2.disable_image, {"ImageId": image}),
    ):
        assert refused(call, DryRun=True, **how)[0] == "DryRunOperation"
    assert walk.image(image)["State"] == "available"


NOT_HERE: list[tuple[str, dict[str, Any]]] = [
    ("export_image",
     {"ImageId": "ami-0123456789abcdef0", "DiskImageFormat": "RAW",
      "S3ExportLocation": {"S3Bucket": "b"}}),
    ("create_replace_root_volume_task", {"InstanceId": "i-0123456789abcdef0"}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "how"), NOT_HERE)
def test_what_is_not_here_is_refused_at_once_and_by_name(
    ec2: Any, refused: Any, call: str, how: dict[str, Any]
) -> None:
    name = "".join(word.title() for word in call.split("_"))
    code, message = refused(getattr(ec2, call), **how)
    assert (code, f"AMI Kiln lab: {name} " in message) == ("UnsupportedOperation", True), message


def test_a_copy_names_a_region(ec2: Any, refused: Any) -> None:
    region = ("InvalidParameterValue", "Value (mars-1) for parameter sourceRegion is invalid.")
    image = {"SourceRegion": "mars-1", "SourceImageId": f"ami-{NOWHERE}", "Name": "any"}
    assert refused(ec2.copy_image, **image) == region
