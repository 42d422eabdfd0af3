"""Filters and refusals of the lab: the codes of EC2, and by name what is not implemented.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.slow
NOWHERE = "0123456789abcdef0"


@pytest.fixture(scope="module")
def image(walk: Any, account: Any) -> Any:
    disk = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 21}}
    made = walk.launched(BlockDeviceMappings=[disk])
    found = walk.baked(InstanceId=made["InstanceId"], Description="to be found *")
    account.create_tags(Resources=[found["ImageId"]], Tags=[{"Key": "team", "Value": "ml"}])
    return found


@pytest.mark.parametrize(
    ("name", "value", "there"),
    [
        ("architecture", "x86_64", True),
        ("architecture", "arm64", False),
        ("block-device-mapping.volume-size", "2?", True),
        ("description", r"to be found \*", True),
        ("name", "baked-*", True),
        ("state", "available", True),
        ("tag:team", "m?", True),
        ("tag-key", "team", True),
    ],
)
def test_images_are_found_by(account: Any, image: Any, name: str, value: str, there: bool) -> None:
    found = account.describe_images(Filters=[{"Name": name, "Values": [value]}])["Images"]
    assert (image["ImageId"] in {image["ImageId"] for image in found}) is there


@pytest.fixture(scope="module")
def instance(walk: Any) -> Any:
    role = [{"ResourceType": "instance", "Tags": [{"Key": "role", "Value": "web"}]}]
    return walk.launched(ClientToken="token-of-filters", TagSpecifications=role)


@pytest.mark.parametrize(
    ("name", "value", "there"),
    [
        ("availability-zone", "us-east-1b", False),
        ("client-token", "token-of-filters", True),
        ("image-id", "ami-*", True),
        ("instance-state-name", "running", True),
        ("instance-type", "t3.*", True),
        ("tag:role", "web", True),
        ("tag-key", "role", True),
    ],
)
def test_instances_are_found_by(
    account: Any, instance: Any, name: str, value: str, there: bool
) -> None:
    found = account.describe_instances(Filters=[{"Name": name, "Values": [value]}])["Reservations"]
    ids = {instance["InstanceId"] for reservation in found for instance in reservation["Instances"]}
    assert (instance["InstanceId"] in ids) is there


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ("describe_images", "Images"),
        ("describe_snapshots", "Snapshots"),
        ("describe_instances", "Reservations"),
        ("describe_tags", "Tags"),
    ],
)
def test_pages_hold_everything_once(account: Any, instance: Any, call: str, key: str) -> None:
    every = getattr(account, call)()[key]
    pages = list(account.get_paginator(call).paginate(PaginationConfig={"PageSize": 5}))
    assert [entry for page in pages for entry in page[key]] == every
    assert all(len(page[key]) == 5 for page in pages[:-1])


CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("describe_images", {"ImageIds": ["ami-xyz"]}, "InvalidAMIID.Malformed"),
    ("stop_instances", {"InstanceIds": ["web-1"]}, "InvalidInstanceID.Malformed"),
    ("describe_images", {"ImageIds": [f"ami-{NOWHERE}"]}, "InvalidAMIID.NotFound"),
    ("deregister_image", {"ImageId": f"ami-{NOWHERE}"}, "InvalidAMIID.NotFound"),
    ("describe_instances", {"InstanceIds": [f"i-{NOWHERE}"]}, "InvalidInstanceID.NotFound"),
    ("delete_snapshot", {"SnapshotId": f"snap-{NOWHERE}"}, "InvalidSnapshot.NotFound"),
    ("describe_images", {"Filters": [{"Name": "color", "Values": ["red"]}]},
     "InvalidParameterValue"),
    ("describe_instances", {"Filters": [{"Name": "color", "Values": ["red"]}]},
     "InvalidParameterValue"),
    ("describe_images", {"MaxResults": 5, "NextToken": "forged"}, "InvalidPaginationToken"),
    ("export_image", {"ImageId": f"ami-{NOWHERE}", "DiskImageFormat": "RAW",
                      "S3ExportLocation": {"S3Bucket": "b"}}, "UnsupportedOperation"),
    ("register_image", {"Name": "new"}, "UnsupportedOperation"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "how", "code"), CALLS)
def test_wrong_call_is_refused_with_ec2s_code(
    account: Any, refused: Any, call: str, how: dict[str, Any], code: str
) -> None:
    found, message = refused(getattr(account, call), **how)
    assert found == code
    if code == "UnsupportedOperation":
        name = "".join(word.title() for word in call.split("_"))
        assert f"AMI Kiln lab: {name} " in message


@pytest.mark.parametrize(
    ("how", "code", "part"),
    [
        ({"InstanceType": "t2.gigantic"}, "InvalidParameterValue", "t2.gigantic"),
        ({"InstanceType": "t4g.micro"}, "InvalidParameterValue", "'arm64' of the specified"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue", "limited to 16384 bytes"),
        ({"MetadataOptions": {"HttpPutResponseHopLimit": 65}}, "InvalidParameterValue", "65"),
        ({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound", "nobody"),
    ],
    ids=["type", "processor", "user-data", "hop-limit", "key"],
)
def test_impossible_launch_is_refused(
    walk: Any, refused: Any, how: dict[str, Any], code: str, part: str
) -> None:
    found, message = refused(walk.launched, **how)
    assert (found, part in message) == (code, True), message


def test_same_client_token_launches_once(walk: Any, account: Any, refused: Any) -> None:
    first = walk.launched(ClientToken="once")
    assert walk.launched(ClientToken="once")["InstanceId"] == first["InstanceId"]
    other = {"ImageId": walk.parent, "InstanceType": "t3.nano", "MinCount": 1, "MaxCount": 1}
    code, _ = refused(account.run_instances, ClientToken="once", **other)
    assert code == "IdempotentParameterMismatch"


def test_same_client_token_copies_once(account: Any, parent: str, refused: Any) -> None:
    """Also when it is asked again before it was answered."""
    how = {"SourceImageId": parent, "SourceRegion": "us-east-1", "ClientToken": "a copy"}
    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(account.copy_image, Name="once", **how) for _ in range(3)]
        made = {request.result()["ImageId"] for request in asked}
    named = account.describe_images(Filters=[{"Name": "name", "Values": ["once"]}])["Images"]
    assert {image["ImageId"] for image in named} == made
    assert refused(account.copy_image, Name="two", **how)[0] == "IdempotentParameterMismatch"


def test_security_group_in_use_is_not_deleted(account: Any, walk: Any, refused: Any) -> None:
    group = account.create_security_group(GroupName="build", Description="of a build")["GroupId"]
    made = walk.launched(SecurityGroupIds=[group])
    assert refused(account.delete_security_group, GroupId=group)[0] == "DependencyViolation"
    walk.terminated(made["InstanceId"])
    account.delete_security_group(GroupId=group)


def test_efa_interface_needs_a_type_with_efa(walk: Any, refused: Any) -> None:
    card = {"DeviceIndex": 0, "InterfaceType": "efa"}
    code, _ = refused(walk.launched, InstanceType="g4dn.xlarge", NetworkInterfaces=[card])
    assert code == "InvalidParameterCombination"
    assert walk.launched(InstanceType="g4dn.8xlarge", NetworkInterfaces=[card])["PublicIpAddress"]
