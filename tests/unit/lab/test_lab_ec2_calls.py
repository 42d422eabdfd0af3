"""Filters and refusals of the lab: the codes of EC2, and by name what is not implemented.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.ec2.exceptions import EC2ClientError

from lab.moto.ec2 import consistency

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
        ("block-device-mapping.volume-size", "2", False),
        ("description", r"to be found \*", True),
        ("description", r"to be\*", False),
        ("description", "TO BE*", False),
        ("is-public", "true", False),
        ("name", "baked-*", True),
        ("name", "[b]aked-*", False),
        ("state", "available", True),
        ("tag:team", "m?", True),
        ("tag:team", "ops", False),
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
        ("instance-state-name", "stopped", False),
        ("instance-type", "t3.*", True),
        ("private-ip-address", "10.*", True),
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
    ("run_instances", {"ImageId": "ami", "MinCount": 1, "MaxCount": 1}, "InvalidAMIID.Malformed"),
    ("stop_instances", {"InstanceIds": ["web-1"]}, "InvalidInstanceID.Malformed"),
    ("describe_snapshots", {"SnapshotIds": ["snap-zz"]}, "InvalidSnapshotID.Malformed"),
    ("describe_images", {"ImageIds": [f"ami-{NOWHERE}"]}, "InvalidAMIID.NotFound"),
    ("deregister_image", {"ImageId": f"ami-{NOWHERE}"}, "InvalidAMIID.NotFound"),
    ("describe_instances", {"InstanceIds": [f"i-{NOWHERE}"]}, "InvalidInstanceID.NotFound"),
    ("delete_volume", {"VolumeId": f"vol-{NOWHERE}"}, "InvalidVolume.NotFound"),
    ("delete_snapshot", {"SnapshotId": f"snap-{NOWHERE}"}, "InvalidSnapshot.NotFound"),
    ("describe_images", {"Filters": [{"Name": "color", "Values": ["red"]}]},
     "InvalidParameterValue"),
    ("describe_instances", {"Filters": [{"Name": "color", "Values": ["red"]}]},
     "InvalidParameterValue"),
    ("describe_images", {"MaxResults": 5, "NextToken": "forged"}, "InvalidPaginationToken"),
    ("export_image", {"ImageId": f"ami-{NOWHERE}", "DiskImageFormat": "RAW",
                      "S3ExportLocation": {"S3Bucket": "b"}}, "UnsupportedOperation"),
    ("create_ipam", {}, "UnsupportedOperation"),
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
    ("service", "call", "how"),
    [
        ("ssm", "describe_automation_executions", {}),
        ("cloudformation", "create_stack", {"StackName": "a", "TemplateBody": "{}"}),
        ("codebuild", "start_build_batch", {"projectName": "nights"}),
        ("logs", "start_query", {"startTime": 0, "endTime": 1, "queryString": "fields a"}),
    ],
)
def test_other_services_refuse_in_their_own_form(
    client: Any, service: str, call: str, how: dict[str, Any]
) -> None:
    with pytest.raises(ClientError) as refused:
        getattr(client(service), call)(**how)
    answer = refused.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert refused.value.operation_name in answer["Error"]["Message"]


@pytest.mark.parametrize("name", ["a" * 129, "what?", "äöü"])
def test_name_that_no_ami_can_have_is_malformed(
    walk: Any, account: Any, image: Any, instance: Any, refused: Any, name: str
) -> None:
    copy = refused(walk.copied, source=image["ImageId"], Name=name)
    made = refused(account.create_image, InstanceId=instance["InstanceId"], Name=name)
    assert copy[0] == made[0] == "InvalidAMIName.Malformed"


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


def test_dry_run_changes_nothing(account: Any, walk: Any, image: Any, refused: Any) -> None:
    for call in (account.deregister_image, account.disable_image):
        assert refused(call, DryRun=True, ImageId=image["ImageId"])[0] == "DryRunOperation"
    assert walk.image(image["ImageId"])["State"] == "available"


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("k" * 128, "v" * 256, None),
        ("k" * 129, "v", "key exceeds the maximum length of 128"),
        ("k", "v" * 257, "value exceeds the maximum length of 256"),
        ("aws:k", "v", "reserved for internal use"),
    ],
    ids=["longest", "long-key", "long-value", "aws"],
)
def test_tag_that_ec2_does_not_take_is_refused(
    account: Any, image: Any, key: str, value: str, refusal: str | None
) -> None:
    tags = {"Tags": [{"Key": key, "Value": value}]}
    volume = {"AvailabilityZone": "us-east-1a", "Size": 1}
    for ask in (
        partial(account.create_tags, Resources=[image["ImageId"]], **tags),
        partial(
            account.create_volume, **volume, TagSpecifications=[{"ResourceType": "volume", **tags}]
        ),
    ):
        with pytest.raises(ClientError, match=refusal) if refusal else nullcontext():
            ask()


def test_security_group_in_use_is_not_deleted(account: Any, walk: Any, refused: Any) -> None:
    group = account.create_security_group(GroupName="build", Description="of a build")["GroupId"]
    made = walk.launched(SecurityGroupIds=[group])
    assert refused(account.delete_security_group, GroupId=group)[0] == "DependencyViolation"
    walk.terminated(made["InstanceId"])
    account.delete_security_group(GroupId=group)


def test_new_ids_are_unknown_for_a_moment_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_efa_interface_needs_a_type_with_efa(walk: Any, refused: Any) -> None:
    card = {"DeviceIndex": 0, "InterfaceType": "efa"}
    code, _ = refused(walk.launched, InstanceType="g4dn.xlarge", NetworkInterfaces=[card])
    assert code == "InvalidParameterCombination"
    assert walk.launched(InstanceType="g4dn.8xlarge", NetworkInterfaces=[card])["PublicIpAddress"]
