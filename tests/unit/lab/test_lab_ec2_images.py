"""AMIs of the lab as their owner and their users see them: copies, permissions, states.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/AMIs.html
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SOMEBODY = {"UserId": "210987654321"}


@pytest.fixture(scope="module")
def baked(walk: Any) -> Any:
    """An AMI with a root volume of 20 GiB, a description and tags."""
    disk = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}}
    return walk.baked(
        InstanceId=walk.launched(BlockDeviceMappings=[disk])["InstanceId"],
        Description="what it is",
        TagSpecifications=[
            {"ResourceType": "image", "Tags": [{"Key": "team", "Value": "ml"}]},
            {"ResourceType": "snapshot", "Tags": [{"Key": "kind", "Value": "disk"}]},
        ],
    )


def tags(thing: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in thing.get("Tags", [])}


def test_copy_keeps_the_image_and_drops_its_tags(walk_in: Any, baked: Any) -> None:
    there = walk_in("eu-west-1")
    found = there.copied(baked["ImageId"], Name="copy", Description="over there")
    assert found["ImageId"] != baked["ImageId"]
    assert (found["Name"], found["Description"]) == ("copy", "over there")
    for same in ("Architecture", "RootDeviceType", "RootDeviceName", "VirtualizationType"):
        assert found[same] == baked[same], same
    assert (found["SourceImageId"], found["SourceImageRegion"]) == (baked["ImageId"], "us-east-1")
    disk = found["BlockDeviceMappings"][0]["Ebs"]
    assert (disk["VolumeSize"], disk["Encrypted"]) == (20, False)
    assert disk["SnapshotId"] != baked["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    assert tags(found) == tags(there.snapshot(found)) == {}
    copied = f"Copied for DestinationAmi {found['ImageId']} from SourceAmi {baked['ImageId']} "
    assert there.snapshot(found)["Description"].startswith(copied)


def test_copy_has_the_tags_that_it_asks_for(walk_in: Any, baked: Any, refused: Any) -> None:
    there = walk_in("eu-west-2")
    new = [{"Key": "new", "Value": "one"}]
    kinds = [{"ResourceType": kind, "Tags": new} for kind in ("image", "snapshot")]
    found = there.copied(baked["ImageId"], CopyImageTags=True, TagSpecifications=kinds)
    assert tags(found) == {"team": "ml", "new": "one"}
    assert tags(there.snapshot(found)) == {"new": "one"}
    wrong = [{"ResourceType": "instance", "Tags": new}]
    code, _ = refused(there.copied, source=baked["ImageId"], TagSpecifications=wrong)
    assert code == "InvalidParameterValue"


def test_encrypted_copy_stays_encrypted(
    client: Any, walk: Any, walk_in: Any, baked: Any, refused: Any
) -> None:
    found = walk.copied(baked["ImageId"], Encrypted=True)
    assert found["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert walk.snapshot(found)["KmsKeyId"].startswith("arn:aws:kms:us-east-1:")
    there, source = walk_in("eu-west-3"), found["ImageId"]
    again = there.copied(source)
    assert again["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert refused(there.copied, source=source, Encrypted=False)[0] == "InvalidParameterValue"
    key_alone = {"source": baked["ImageId"], "KmsKeyId": "alias/mine"}
    assert refused(there.copied, **key_alone)[0] == "InvalidParameterDependency"
    kms = client("kms", "eu-west-3")
    key = kms.create_key()["KeyMetadata"]["Arn"]
    kms.create_alias(AliasName="alias/mine", TargetKeyId=key)
    mine = there.copied(baked["ImageId"], Encrypted=True, KmsKeyId="alias/mine")
    assert there.snapshot(mine)["KmsKeyId"] == key


def test_image_with_the_default_key_is_not_shared(
    account: Any, walk: Any, baked: Any, refused: Any
) -> None:
    found = walk.copied(baked["ImageId"], Encrypted=True)
    add = {"Add": [SOMEBODY]}
    modify = account.modify_image_attribute
    code, message = refused(modify, ImageId=found["ImageId"], LaunchPermission=add)
    assert (code, "AWS Managed CMK" in message) == ("InvalidParameter", True)
    of_disk = {"Attribute": "createVolumePermission", "CreateVolumePermission": add}
    of_disk["SnapshotId"] = walk.snapshot(found)["SnapshotId"]
    code, message = refused(account.modify_snapshot_attribute, **of_disk)
    assert (code, "EBS default key" in message) == ("OperationNotPermitted", True)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"source": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"SourceRegion": "eu-central-1"}, "InvalidAMIID.NotFound"),
        ({"Name": "taken"}, "InvalidAMIName.Duplicate"),
        ({"DryRun": True}, "DryRunOperation"),
    ],
)
def test_wrong_copy_is_refused(
    walk: Any, baked: Any, refused: Any, wrong: dict[str, Any], code: str
) -> None:
    if wrong == {"Name": "taken"}:
        walk.copied(baked["ImageId"], **wrong)
    assert refused(walk.copied, **({"source": baked["ImageId"]} | wrong))[0] == code


def permissions(ec2: Any, image: str) -> list[dict[str, str]]:
    answer = ec2.describe_image_attribute(ImageId=image, Attribute="launchPermission")
    found: list[dict[str, str]] = answer["LaunchPermissions"]
    return found


def volume_permissions(ec2: Any, snapshot: str) -> list[dict[str, str]]:
    asked = {"SnapshotId": snapshot, "Attribute": "createVolumePermission"}
    found: list[dict[str, str]] = ec2.describe_snapshot_attribute(**asked)[
        "CreateVolumePermissions"
    ]
    return found


def test_launch_permissions_are_given_and_taken(account: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    ou = "arn:aws:organizations::123456789012:ou/o-abcdefghij/ou-abcd-12345678"
    account.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [SOMEBODY]})
    account.modify_image_attribute(
        ImageId=image, OperationType="add", OrganizationalUnitArns=[ou], UserIds=["111122223333"]
    )
    expected = [SOMEBODY, {"UserId": "111122223333"}, {"OrganizationalUnitArn": ou}]
    assert permissions(account, image) == expected
    account.modify_image_attribute(ImageId=image, LaunchPermission={"Remove": [SOMEBODY]})
    assert permissions(account, image) == expected[1:]


def test_accounts_are_given_as_packer_gives_them(account: Any, walk: Any, refused: Any) -> None:
    """Its amazon plugin sends the accounts twice, and the second time without OperationType."""
    baked = walk.baked()
    image, snapshot = baked["ImageId"], walk.snapshot(baked)["SnapshotId"]
    twice = {"UserIds": [SOMEBODY["UserId"]]}
    account.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [SOMEBODY]}, **twice)
    assert permissions(account, image) == [SOMEBODY]
    account.modify_snapshot_attribute(
        SnapshotId=snapshot, CreateVolumePermission={"Add": [SOMEBODY]}, **twice
    )
    assert volume_permissions(account, snapshot) == [SOMEBODY]
    for call, of in (
        (account.modify_image_attribute, {"ImageId": image}),
        (account.modify_snapshot_attribute, {"SnapshotId": snapshot}),
    ):
        assert refused(call, **of, **twice)[0] == "MissingParameter"


def test_only_the_owner_changes_an_image(account: Any, parent: str, refused: Any) -> None:
    for call, how in (
        (account.modify_image_attribute, {"LaunchPermission": {"Add": [SOMEBODY]}}),
        (account.disable_image_deprecation, {}),
        (account.disable_image, {}),
        (account.deregister_image, {}),
    ):
        assert refused(call, ImageId=parent, **how)[0] == "AuthFailure", call


def test_deprecation_is_to_the_minute_and_in_the_future(
    account: Any, walk: Any, refused: Any
) -> None:
    image = walk.baked()["ImageId"]
    account.enable_image_deprecation(ImageId=image, DeprecateAt="2030-01-01T00:00:40Z")
    assert walk.image(image)["DeprecationTime"] == "2030-01-01T00:01:00.000Z"
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    code, _ = refused(account.enable_image_deprecation, ImageId=image, DeprecateAt=yesterday)
    assert code == "InvalidParameterValue"
    account.disable_image_deprecation(ImageId=image)
    assert "DeprecationTime" not in walk.image(image)


def test_deprecated_image_of_others_is_hidden(account: Any) -> None:
    old = {"Owners": ["amazon"], "Filters": [{"Name": "name", "Values": ["al2023-ami-2023.5.*"]}]}
    assert account.describe_images(**old)["Images"] == []
    found = account.describe_images(**old, IncludeDeprecated=True)["Images"]
    assert {image["Architecture"] for image in found} == {"x86_64", "arm64"}
    named = account.describe_images(ImageIds=[found[0]["ImageId"]])["Images"]
    assert named[0]["DeprecationTime"] < "2026"


def test_disabled_image_is_not_listed_shared_or_launched(
    account: Any, walk: Any, refused: Any
) -> None:
    image = walk.baked()["ImageId"]
    account.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [SOMEBODY]})
    account.disable_image(ImageId=image)
    assert account.describe_images(ImageIds=[image])["Images"] == []
    listed = account.describe_images(Owners=["self"])["Images"]
    assert image not in {entry["ImageId"] for entry in listed}
    assert walk.image(image, IncludeDisabled=True)["State"] == "disabled"
    assert permissions(account, image) == []
    assert refused(walk.launched, ImageId=image)[0] == "InvalidAMIID.Unavailable"


def test_deregistered_image_is_gone_with_snapshots_if_asked(
    account: Any, walk: Any, refused: Any
) -> None:
    kept, gone = walk.baked(), walk.baked()
    snapshots = [walk.snapshot(image)["SnapshotId"] for image in (kept, gone)]
    account.deregister_image(ImageId=kept["ImageId"])
    assert account.describe_snapshots(SnapshotIds=snapshots[:1])["Snapshots"]
    answer = account.deregister_image(ImageId=gone["ImageId"], DeleteAssociatedSnapshots=True)
    deleted = [{"SnapshotId": snapshots[1], "ReturnCode": "success"}]
    assert answer["DeleteSnapshotResults"] == deleted
    how = {"SnapshotIds": snapshots[1:]}
    assert refused(account.describe_snapshots, **how)[0] == "InvalidSnapshot.NotFound"
    image = gone["ImageId"]
    assert refused(account.describe_images, ImageIds=[image])[0] == "InvalidAMIID.NotFound"
    assert refused(walk.launched, ImageId=image)[0] == "InvalidAMIID.Unavailable"
    assert refused(account.deregister_image, ImageId=image)[0] == "InvalidAMIID.Unavailable"


def test_protected_image_is_not_deregistered(account: Any, walk: Any, refused: Any) -> None:
    image = walk.baked()["ImageId"]
    account.enable_image_deregistration_protection(ImageId=image)
    assert refused(account.deregister_image, ImageId=image)[0] == "OperationNotPermitted"
    account.disable_image_deregistration_protection(ImageId=image)
    account.deregister_image(ImageId=image)


def test_time_of_the_last_launch_is_shown(account: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    assert "LastLaunchedTime" not in walk.image(image)
    before = datetime.now(timezone.utc).replace(microsecond=0)
    walk.launched(ImageId=image)
    shown = walk.image(image)["LastLaunchedTime"]
    assert before <= datetime.fromisoformat(shown) <= datetime.now(timezone.utc)


def options(made: Any) -> tuple[str, int]:
    found = made["MetadataOptions"]
    return found["HttpTokens"], found["HttpPutResponseHopLimit"]


def test_instances_of_an_imdsv2_image_require_tokens(account: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    assert options(walk.launched(ImageId=image)) == ("optional", 1)
    account.modify_image_attribute(ImageId=image, ImdsSupport={"Value": "v2.0"})
    assert options(walk.launched(ImageId=image)) == ("required", 2)
    asked = {"HttpTokens": "optional", "HttpPutResponseHopLimit": 5}
    assert options(walk.launched(ImageId=image, MetadataOptions=asked)) == ("optional", 5)


def test_usage_report_counts_instances_and_templates(account: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    walk.launched(ImageId=image)
    data = {"ImageId": image}
    account.create_launch_template(LaunchTemplateName="of-it", LaunchTemplateData=data)
    kinds = [{"ResourceType": "ec2:Instance"}, {"ResourceType": "ec2:LaunchTemplate"}]
    report = account.create_image_usage_report(ImageId=image, ResourceTypes=kinds)["ReportId"]
    shown = account.describe_image_usage_reports(ReportIds=[report])["ImageUsageReports"]
    assert [(entry["ImageId"], entry["State"]) for entry in shown] == [(image, "available")]
    entries = account.describe_image_usage_report_entries(ReportIds=[report])
    counts = {
        entry["ResourceType"]: entry["UsageCount"] for entry in entries["ImageUsageReportEntries"]
    }
    assert counts == {"ec2:Instance": 1, "ec2:LaunchTemplate": 1}
