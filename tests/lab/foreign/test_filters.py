"""Filters and pages of the Describe calls.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
"""

from __future__ import annotations

from typing import Any

import pytest

from lab.moto.ec2 import filters

# The answers show nothing of these: the filter is taken, and nothing has such a value.
NOT_SHOWN = (
    "instance-type-specification.",
    "scan-result.",
    "metadata-options.http-protocol-ipv4",
    "network-interface.",
    "private-dns-name-options.enable-resource-name-dns-aaaa-record",
)


@pytest.fixture(scope="module")
def image(walk: Any, ec2: Any) -> Any:
    made = walk.launched(
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 21}}]
    )
    found = walk.baked(InstanceId=made["InstanceId"], Description="to be found *")
    ec2.create_tags(Resources=[found["ImageId"]], Tags=[{"Key": "team", "Value": "ml"}])
    return found


IMAGES: list[tuple[str, str, bool]] = [
    ("architecture", "x86_64", True),
    ("architecture", "arm64", False),
    ("block-device-mapping.delete-on-termination", "true", True),
    ("block-device-mapping.device-name", "/dev/xvda", True),
    ("block-device-mapping.encrypted", "false", True),
    ("block-device-mapping.volume-size", "21", True),
    ("block-device-mapping.volume-size", "2?", True),
    ("block-device-mapping.volume-size", "2", False),
    ("block-device-mapping.volume-type", "gp3", True),
    ("boot-mode", "uefi-preferred", True),
    ("boot-mode", "uefi", False),
    ("creation-date", "2*", True),
    ("creation-date", "1999-*", False),
    ("description", "to be*", True),
    ("description", r"to be found \*", True),
    ("description", r"to be\*", False),
    ("description", "TO BE*", False),
    ("ena-support", "true", True),
    ("hypervisor", "xen", True),
    ("image-type", "machine", True),
    ("is-public", "false", True),
    ("is-public", "true", False),
    ("name", "baked-*", True),
    ("name", "[b]aked-*", False),
    ("platform-details", "Linux/UNIX", True),
    ("root-device-name", "/dev/xvda", True),
    ("root-device-type", "ebs", True),
    ("source-instance-id", "i-*", True),
    ("sriov-net-support", "simple", True),
    ("state", "available", True),
    ("tag:team", "ml", True),
    ("tag:team", "m?", True),
    ("tag:team", "ops", False),
    ("tag-key", "team", True),
    ("virtualization-type", "hvm", True),
]


@pytest.mark.parametrize(("name", "value", "there"), IMAGES)
def test_images_are_found_by(ec2: Any, image: Any, name: str, value: str, there: bool) -> None:
    found = ec2.describe_images(Filters=[{"Name": name, "Values": [value]}])["Images"]
    assert (image["ImageId"] in {image["ImageId"] for image in found}) is there


def test_a_copy_is_found_by_what_it_was_copied_from(client: Any, image: Any) -> None:
    ec2 = client("ec2", "eu-west-1")
    source = image["ImageId"]
    made = ec2.copy_image(SourceImageId=source, SourceRegion="us-east-1", Name="copy")["ImageId"]
    for name, value in (("source-image-id", source), ("source-image-region", "us-east-1")):
        found = ec2.describe_images(Filters=[{"Name": name, "Values": [value]}])["Images"]
        assert [image["ImageId"] for image in found] == [made]


def test_values_are_any_of_and_filters_all_of(ec2: Any, image: Any) -> None:
    def found(*chosen: tuple[str, list[str]]) -> bool:
        how = [{"Name": name, "Values": values} for name, values in chosen]
        images = ec2.describe_images(Owners=["self"], Filters=how)["Images"]
        return image["ImageId"] in {image["ImageId"] for image in images}

    assert found(("architecture", ["arm64", "x86_64"]))
    assert found(("architecture", ["x86_64"]), ("tag:team", ["ml"]))
    assert not found(("architecture", ["x86_64"]), ("tag:team", ["ops"]))


@pytest.fixture(scope="module")
def instance(walk: Any, ec2: Any) -> Any:
    ec2.create_security_group(GroupName="web", Description="web")
    return walk.launched(
        MetadataOptions={"HttpTokens": "required", "HttpPutResponseHopLimit": 3},
        SecurityGroups=["web"],
        ClientToken="token-of-filters",
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "role", "Value": "web"}]}],
    )


INSTANCES: list[tuple[str, str, bool]] = [
    ("architecture", "x86_64", True),
    ("availability-zone", "us-east-1a", True),
    ("availability-zone", "us-east-1b", False),
    ("block-device-mapping.delete-on-termination", "true", True),
    ("block-device-mapping.device-name", "/dev/xvda", True),
    ("block-device-mapping.volume-id", "vol-*", True),
    ("client-token", "token-of-filters", True),
    ("image-id", "ami-*", True),
    ("instance-lifecycle", "spot", False),
    ("instance-state-code", "16", True),
    ("instance-state-name", "running", True),
    ("instance-state-name", "stopped", False),
    ("instance-type", "t3.*", True),
    ("instance.group-name", "web", True),
    ("instance.group-name", "default", False),
    ("launch-time", "2*", True),
    ("launch-time", "1999*", False),
    ("metadata-options.http-tokens", "required", True),
    ("metadata-options.http-tokens", "optional", False),
    ("metadata-options.http-put-response-hop-limit", "3", True),
    ("monitoring-state", "disabled", True),
    ("network-interface.private-ip-address", "10.*", True),
    ("network-interface.group-name", "web", True),
    ("owner-id", "123456789012", True),
    ("owner-id", "210987654321", False),
    ("private-ip-address", "10.*", True),
    ("ip-address", "10.*", True),
    ("root-device-name", "/dev/xvda", True),
    ("tag:role", "web", True),
    ("tag-key", "role", True),
    ("tenancy", "default", True),
    ("virtualization-type", "hvm", True),
]


@pytest.mark.parametrize(("name", "value", "there"), INSTANCES)
def test_instances_are_found_by(
    ec2: Any, instance: Any, name: str, value: str, there: bool
) -> None:
    found = ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])["Reservations"]
    ids = {instance["InstanceId"] for reservation in found for instance in reservation["Instances"]}
    assert (instance["InstanceId"] in ids) is there


def test_a_spot_instance_is_found_by_its_lifecycle(walk: Any, ec2: Any) -> None:
    made = walk.launched(InstanceMarketOptions={"MarketType": "spot"})
    found = ec2.describe_instances(Filters=[{"Name": "instance-lifecycle", "Values": ["spot"]}])[
        "Reservations"
    ]
    assert [image["Instances"][0]["InstanceId"] for image in found] == [made["InstanceId"]]


@pytest.mark.parametrize(
    ("call", "key", "name", "value"),
    [
        ("describe_volumes", "Volumes", "attachment.device", "/dev/xvda"),
        ("describe_volumes", "Volumes", "attachment.delete-on-termination", "true"),
        ("describe_volumes", "Volumes", "status", "in-use"),
        ("describe_volumes", "Volumes", "volume-type", "gp3"),
        ("describe_volumes", "Volumes", "create-time", "2*"),
        ("describe_snapshots", "Snapshots", "status", "completed"),
        ("describe_snapshots", "Snapshots", "owner-id", "123456789012"),
        ("describe_snapshots", "Snapshots", "volume-size", "21"),
        ("describe_snapshots", "Snapshots", "start-time", "2*"),
        ("describe_instance_status", "InstanceStatuses", "instance-status.status", "ok"),
        ("describe_instance_status", "InstanceStatuses", "instance-state-name", "running"),
    ],
)
def test_others_are_found_by(
    ec2: Any, image: Any, call: str, key: str, name: str, value: str
) -> None:
    assert getattr(ec2, call)(Filters=[{"Name": name, "Values": [value]}])[key]
    assert not getattr(ec2, call)(Filters=[{"Name": name, "Values": ["none-such"]}])[key]


@pytest.mark.parametrize("call", sorted(filters.LISTS))
def test_every_documented_filter_is_looked_up_in_the_answer(call: str) -> None:
    names = {name for name in filters.documented(call) if not name.startswith("tag")}
    assert len(names) >= 10
    lost = {name for name in names if not filters.exists(call, name)}
    assert {name for name in lost if not name.startswith(NOT_SHOWN)} == set()


def test_pages_hold_everything_once(walk: Any, ec2: Any, refused: Any) -> None:
    for _ in range(3):
        walk.launched()
    for call, key in (
        ("describe_images", "Images"),
        ("describe_snapshots", "Snapshots"),
        ("describe_volumes", "Volumes"),
        ("describe_instances", "Reservations"),
        ("describe_instance_status", "InstanceStatuses"),
        ("describe_key_pairs", "KeyPairs"),
        ("describe_security_groups", "SecurityGroups"),
        ("describe_tags", "Tags"),
    ):
        every = getattr(ec2, call)()[key]
        if not ec2.can_paginate(call) or call == "describe_key_pairs":
            continue
        pages = list(ec2.get_paginator(call).paginate(PaginationConfig={"PageSize": 5}))
        assert [entry for page in pages for entry in page[key]] == every, call
        assert all(len(page[key]) == 5 for page in pages[:-1]), call
    code, _ = refused(ec2.describe_images, MaxResults=5, NextToken="forged")
    assert code == "InvalidPaginationToken"


def test_ids_and_pages_exclude_each_other(walk: Any, ec2: Any, refused: Any) -> None:
    made = walk.launched()["InstanceId"]
    code, _ = refused(ec2.describe_instances, InstanceIds=[made], MaxResults=5)
    assert code == "InvalidParameterCombination"
