"""The Recycle Bin: what a rule keeps is out of sight, and comes back as it was.

https://docs.aws.amazon.com/ebs/latest/userguide/recycle-bin.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

WEEK = {"RetentionPeriodValue": 7, "RetentionPeriodUnit": "DAYS"}


@pytest.fixture(scope="module")
def rbin(client: Callable[..., Any]) -> Any:
    return client("rbin")


@pytest.fixture
def rule(rbin: Any) -> Iterator[Callable[..., Any]]:
    """Makes a rule, which goes with the test."""
    made: list[str] = []

    def make(kind: str, **how: Any) -> Any:
        found = rbin.create_rule(**({"ResourceType": kind, "RetentionPeriod": WEEK} | how))
        made.append(found["Identifier"])
        return found

    yield make
    for rule_id in made:
        rbin.delete_rule(Identifier=rule_id)


def test_a_deregistered_image_waits_in_the_bin_and_is_restored_with_all_it_had(
    walk: Any, ec2: Any, rule: Any, refused: Any
) -> None:
    rule("EC2_IMAGE")
    tags = [{"ResourceType": "image", "Tags": [{"Key": "team", "Value": "ml"}]}]
    image = walk.baked(Description="a week", TagSpecifications=tags)
    before, image_id = walk.image(image["ImageId"]), image["ImageId"]
    ec2.deregister_image(ImageId=image_id)
    assert refused(ec2.describe_images, ImageIds=[image_id])[0] == "InvalidAMIID.NotFound"
    assert refused(walk.launched, ImageId=image_id)[0] == "InvalidAMIID.Unavailable"
    (waiting,) = ec2.list_images_in_recycle_bin(ImageIds=[image_id])["Images"]
    assert (waiting["Name"], waiting["Description"]) == (image["Name"], "a week")
    stay = waiting["RecycleBinExitTime"] - waiting["RecycleBinEnterTime"]
    assert stay == timedelta(days=7)
    ec2.restore_image_from_recycle_bin(ImageId=image_id)
    assert walk.image(image_id) == before
    assert ec2.list_images_in_recycle_bin()["Images"] == []
    assert walk.launched(ImageId=image_id)["ImageId"] == image_id
    code, _ = refused(ec2.restore_image_from_recycle_bin, ImageId=image_id)
    assert code == "InvalidAMIID.NotFound"


def test_an_image_cannot_come_back_to_a_name_that_is_taken(
    walk: Any, ec2: Any, rule: Any, refused: Any
) -> None:
    rule("EC2_IMAGE")
    image = walk.baked(Name="taken-meanwhile")
    ec2.deregister_image(ImageId=image["ImageId"])
    walk.baked(Name="taken-meanwhile")
    code, _ = refused(ec2.restore_image_from_recycle_bin, ImageId=image["ImageId"])
    assert code == "InvalidAMIName.Duplicate"


@pytest.mark.parametrize(
    ("how", "team", "days"),
    [
        ({"ResourceTags": [{"ResourceTagKey": "team", "ResourceTagValue": "ml"}]}, "ml", 7),
        ({"ResourceTags": [{"ResourceTagKey": "team"}]}, "ops", 7),
        ({"ResourceTags": [{"ResourceTagKey": "team", "ResourceTagValue": "ml"}]}, "ops", 0),
        ({"ExcludeResourceTags": [{"ResourceTagKey": "team"}]}, "ml", 0),
        ({"ExcludeResourceTags": [{"ResourceTagKey": "other"}]}, "ml", 7),
    ],
)
def test_tags_decide_what_a_rule_keeps(
    ec2: Any, rule: Any, how: dict[str, Any], team: str, days: int
) -> None:
    rule("EBS_SNAPSHOT", **how)
    volume = ec2.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    tags = [{"ResourceType": "snapshot", "Tags": [{"Key": "team", "Value": team}]}]
    snapshot = ec2.create_snapshot(VolumeId=volume, TagSpecifications=tags)["SnapshotId"]
    ec2.delete_snapshot(SnapshotId=snapshot)
    waiting = ec2.list_snapshots_in_recycle_bin()["Snapshots"]
    assert [entry["SnapshotId"] for entry in waiting] == ([snapshot] if days else [])
    if days:
        back = ec2.restore_snapshot_from_recycle_bin(SnapshotId=snapshot)
        assert (back["SnapshotId"], back["VolumeSize"]) == (snapshot, 1)
        shown = ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
        assert shown[0]["Tags"] == [{"Key": "team", "Value": team}]


def test_a_rule_with_tags_goes_before_the_regions(walk: Any, ec2: Any, rule: Any) -> None:
    month = {"RetentionPeriodValue": 30, "RetentionPeriodUnit": "DAYS"}
    rule("EC2_IMAGE", RetentionPeriod=month)
    rule("EC2_IMAGE", ResourceTags=[{"ResourceTagKey": "short"}])
    image = walk.baked()["ImageId"]
    ec2.create_tags(Resources=[image], Tags=[{"Key": "short", "Value": ""}])
    ec2.deregister_image(ImageId=image)
    (waiting,) = ec2.list_images_in_recycle_bin(ImageIds=[image])["Images"]
    stay = waiting["RecycleBinExitTime"] - waiting["RecycleBinEnterTime"]
    assert stay == timedelta(days=7)


def test_rules_are_listed_changed_and_deleted(rbin: Any, rule: Any) -> None:
    made = rule("EC2_IMAGE", Description="images")
    assert (made["Status"], made["ResourceType"]) == ("available", "EC2_IMAGE")
    (listed,) = rbin.list_rules(ResourceType="EC2_IMAGE")["Rules"]
    assert (listed["Identifier"], listed["Description"]) == (made["Identifier"], "images")
    longer = {"RetentionPeriodValue": 8, "RetentionPeriodUnit": "DAYS"}
    rbin.update_rule(Identifier=made["Identifier"], RetentionPeriod=longer)
    shown = rbin.get_rule(Identifier=made["Identifier"])
    assert (shown["RetentionPeriod"], shown["Description"]) == (longer, "images")
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        rbin.get_rule(Identifier="abcdefghijk")
    too_long = {"RetentionPeriodValue": 366, "RetentionPeriodUnit": "DAYS"}
    with pytest.raises(ClientError, match="ValidationException"):
        rbin.create_rule(ResourceType="EC2_IMAGE", RetentionPeriod=too_long)
