"""AMIs as their owner and their users see them: attributes, permissions, states, settings.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/AMIs.html
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

SOMEBODY = {"UserId": "210987654321"}


@pytest.fixture(scope="module")
def image(walk: Any) -> str:
    return str(walk.baked(Description="first")["ImageId"])


@pytest.mark.parametrize(
    ("attribute", "shown", "value"),
    [
        ("description", "Description", "first"),
        ("bootMode", "BootMode", "uefi-preferred"),
        ("sriovNetSupport", "SriovNetSupport", "simple"),
        ("imdsSupport", "ImdsSupport", None),
        ("tpmSupport", "TpmSupport", None),
        ("uefiData", "UefiData", None),
        ("kernel", "KernelId", None),
        ("deregistrationProtection", "DeregistrationProtection", "disabled"),
    ],
)
def test_an_attribute_is_shown_under_its_own_name(
    walk: Any, ec2: Any, attribute: str, shown: str, value: str | None
) -> None:
    fresh = walk.baked(Description="first")["ImageId"]
    answer = ec2.describe_image_attribute(ImageId=fresh, Attribute=attribute)
    assert answer["ImageId"] == fresh
    assert answer[shown].get("Value") == value


def test_the_block_devices_cannot_be_asked_for_as_an_attribute(
    ec2: Any, image: str, refused: Any
) -> None:
    how = {"ImageId": image, "Attribute": "blockDeviceMapping"}
    assert refused(ec2.describe_image_attribute, **how)[0] == "AuthFailure"


def test_a_description_is_changed_in_both_ways(walk: Any, ec2: Any, image: str) -> None:
    ec2.modify_image_attribute(ImageId=image, Description={"Value": "second"})
    assert walk.image(image)["Description"] == "second"
    ec2.modify_image_attribute(ImageId=image, Attribute="description", Value="third")
    assert walk.image(image)["Description"] == "third"


def test_nothing_to_modify_is_refused(ec2: Any, image: str, refused: Any) -> None:
    code, message = refused(ec2.modify_image_attribute, ImageId=image)
    assert (code, message) == ("InvalidParameterCombination", "No attributes specified.")


def permissions(ec2: Any, image: str) -> list[dict[str, str]]:
    answer = ec2.describe_image_attribute(ImageId=image, Attribute="launchPermission")
    found: list[dict[str, str]] = answer["LaunchPermissions"]
    return found


def test_launch_permissions_are_given_and_taken(ec2: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    ou = "arn:aws:organizations::123456789012:ou/o-abcdefghij/ou-abcd-12345678"
    ec2.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [SOMEBODY]})
    ec2.modify_image_attribute(
        ImageId=image, OperationType="add", OrganizationalUnitArns=[ou], UserIds=["111122223333"]
    )
    expected = [SOMEBODY, {"UserId": "111122223333"}, {"OrganizationalUnitArn": ou}]
    assert permissions(ec2, image) == expected
    ec2.modify_image_attribute(ImageId=image, LaunchPermission={"Remove": [SOMEBODY]})
    assert permissions(ec2, image) == expected[1:]
    mine = {"Owners": ["self"], "ExecutableUsers": ["111122223333"]}
    assert [image["ImageId"] for image in ec2.describe_images(**mine)["Images"]] == [image]


def test_users_are_given_as_packer_gives_them(ec2: Any, walk: Any, refused: Any) -> None:
    """Its amazon plugin sends the accounts twice, and the second time without OperationType."""
    baked = walk.baked()
    image = baked["ImageId"]
    snapshot = baked["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    twice = {"UserIds": [SOMEBODY["UserId"]]}
    ec2.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [SOMEBODY]}, **twice)
    assert permissions(ec2, image) == [SOMEBODY]
    ec2.modify_snapshot_attribute(
        SnapshotId=snapshot, CreateVolumePermission={"Add": [SOMEBODY]}, **twice
    )
    shown = ec2.describe_snapshot_attribute(SnapshotId=snapshot, Attribute="createVolumePermission")
    assert shown["CreateVolumePermissions"] == [SOMEBODY]
    for call, of in (
        (ec2.modify_image_attribute, {"ImageId": image}),
        (ec2.modify_snapshot_attribute, {"SnapshotId": snapshot}),
    ):
        assert refused(call, **of, **twice)[0] == "MissingParameter"


def test_a_snapshot_is_shared_and_unshared(ec2: Any, walk: Any, refused: Any) -> None:
    snapshot = walk.baked()["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    asked = {"SnapshotId": snapshot, "Attribute": "createVolumePermission"}

    def shared() -> list[dict[str, str]]:
        found: list[dict[str, str]] = ec2.describe_snapshot_attribute(**asked)[
            "CreateVolumePermissions"
        ]
        return found

    ec2.modify_snapshot_attribute(**asked, OperationType="add", UserIds=[SOMEBODY["UserId"]])
    ec2.modify_snapshot_attribute(**asked, OperationType="add", GroupNames=["all"])
    assert shared() == [{"Group": "all"}, SOMEBODY]
    ec2.modify_snapshot_attribute(**asked, OperationType="remove", UserIds=[SOMEBODY["UserId"]])
    assert shared() == [{"Group": "all"}]
    wrong = asked | {"OperationType": "add", "UserIds": ["12345"]}
    assert refused(ec2.modify_snapshot_attribute, **wrong)[0].startswith("Invalid")
    gone = asked | {"SnapshotId": "snap-00000000000000000"}
    assert refused(ec2.describe_snapshot_attribute, **gone)[0] == "InvalidSnapshot.NotFound"


def test_an_account_number_that_is_none_is_refused(ec2: Any, image: str, refused: Any) -> None:
    how = {"ImageId": image, "LaunchPermission": {"Add": [SOMEBODY, {"UserId": "12345"}]}}
    assert refused(ec2.modify_image_attribute, **how)[0] == "InvalidAMIAttributeItemValue"
    assert permissions(ec2, image) == []


def test_only_the_owner_changes_an_image(ec2: Any, parent: str, refused: Any) -> None:
    for call, how in (
        (ec2.modify_image_attribute, {"Description": {"Value": "mine"}}),
        (ec2.modify_image_attribute, {"LaunchPermission": {"Add": [SOMEBODY]}}),
        (ec2.describe_image_attribute, {"Attribute": "launchPermission"}),
        (ec2.disable_image_deprecation, {}),
        (ec2.disable_image, {}),
        (ec2.deregister_image, {}),
    ):
        assert refused(call, ImageId=parent, **how)[0] == "AuthFailure", call


def test_a_public_image_of_another_is_tagged_for_oneself(ec2: Any, parent: str) -> None:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions"""
    ec2.create_tags(Resources=[parent], Tags=[{"Key": "approved", "Value": "yes"}])
    approved = [{"Name": "tag:approved", "Values": ["yes"]}]
    assert [each["ImageId"] for each in ec2.describe_images(Filters=approved)["Images"]] == [parent]
    ec2.delete_tags(Resources=[parent], Tags=[{"Key": "approved"}])
    assert ec2.describe_images(Filters=approved)["Images"] == []


def test_a_deprecation_is_to_the_minute_and_in_the_future(
    ec2: Any, walk: Any, image: str, refused: Any
) -> None:
    ec2.enable_image_deprecation(ImageId=image, DeprecateAt="2030-01-01T00:00:40Z")
    assert walk.image(image)["DeprecationTime"] == "2030-01-01T00:01:00.000Z"
    now = datetime.now(timezone.utc)
    for when in (now - timedelta(days=1), now + timedelta(days=3700)):
        code, _ = refused(ec2.enable_image_deprecation, ImageId=image, DeprecateAt=when)
        assert code == "InvalidParameterValue"
    ec2.disable_image_deprecation(ImageId=image)
    assert "DeprecationTime" not in walk.image(image)


def test_a_disabled_image_is_not_listed_shared_or_launched(
    ec2: Any, walk: Any, refused: Any
) -> None:
    image = walk.baked()["ImageId"]
    ec2.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [SOMEBODY]})
    ec2.disable_image(ImageId=image)
    assert ec2.describe_images(ImageIds=[image])["Images"] == []
    assert image not in {
        entry["ImageId"] for entry in ec2.describe_images(Owners=["self"])["Images"]
    }
    assert walk.image(image, IncludeDisabled=True)["State"] == "disabled"
    assert permissions(ec2, image) == []
    assert refused(walk.launched, ImageId=image)[0] == "InvalidAMIID.Unavailable"


def test_a_deregistered_image_is_gone_and_its_snapshots_when_asked(
    ec2: Any, walk: Any, refused: Any
) -> None:
    kept, gone = walk.baked(), walk.baked()
    snapshots = [image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"] for image in (kept, gone)]
    ec2.deregister_image(ImageId=kept["ImageId"])
    assert ec2.describe_snapshots(SnapshotIds=snapshots[:1])["Snapshots"]
    answer = ec2.deregister_image(ImageId=gone["ImageId"], DeleteAssociatedSnapshots=True)
    assert answer["DeleteSnapshotResults"] == [
        {"SnapshotId": snapshots[1], "ReturnCode": "success"}
    ]
    how = {"SnapshotIds": snapshots[1:]}
    assert refused(ec2.describe_snapshots, **how)[0] == "InvalidSnapshot.NotFound"
    image = gone["ImageId"]
    assert refused(ec2.describe_images, ImageIds=[image])[0] == "InvalidAMIID.NotFound"
    assert refused(walk.launched, ImageId=image)[0] == "InvalidAMIID.Unavailable"
    assert refused(ec2.deregister_image, ImageId=image)[0] == "InvalidAMIID.Unavailable"


def test_an_image_in_the_making_keeps_its_files_when_another_is_deregistered(
    ec2: Any, walk: Any, folder: Path
) -> None:
    other = walk.baked()["ImageId"]
    instance = walk.launched()["InstanceId"]
    upper = folder / "lab54" / "instances" / instance / "upper"
    for number in range(30_000):  # it takes a while to copy them
        (upper / str(number)).touch()
    made = ec2.create_image(InstanceId=instance, Name="slow", NoReboot=True)["ImageId"]
    layer = folder / "lab54" / "images" / made / "layer"
    for _ in range(6000):
        if layer.is_dir():
            break
        time.sleep(0.01)
    ec2.deregister_image(ImageId=other)
    waiter = ec2.get_waiter("image_available")
    waiter.wait(ImageIds=[made], WaiterConfig={"Delay": 1, "MaxAttempts": 100})
    assert len(list(layer.iterdir())) == 30_000


def test_a_protected_image_is_not_deregistered(ec2: Any, walk: Any, refused: Any) -> None:
    image = walk.baked()["ImageId"]
    ec2.enable_image_deregistration_protection(ImageId=image)
    answer = ec2.describe_image_attribute(ImageId=image, Attribute="deregistrationProtection")
    assert answer["DeregistrationProtection"]["Value"].startswith("enabled")
    assert refused(ec2.deregister_image, ImageId=image)[0] == "OperationNotPermitted"
    ec2.disable_image_deregistration_protection(ImageId=image)
    ec2.deregister_image(ImageId=image)


def test_the_time_of_the_last_launch_is_shown(ec2: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    how = {"ImageId": image, "Attribute": "lastLaunchedTime"}
    assert "Value" not in ec2.describe_image_attribute(**how)["LastLaunchedTime"]
    before = datetime.now(timezone.utc).replace(microsecond=0)
    walk.launched(ImageId=image)
    shown = ec2.describe_image_attribute(**how)["LastLaunchedTime"]["Value"]
    assert before <= datetime.fromisoformat(shown) <= datetime.now(timezone.utc)
    assert walk.image(image)["LastLaunchedTime"] == shown


def options(made: Any) -> tuple[str, int]:
    found = made["MetadataOptions"]
    return found["HttpTokens"], found["HttpPutResponseHopLimit"]


def test_instances_of_an_image_with_imdsv2_require_tokens(ec2: Any, walk: Any) -> None:
    image = walk.baked()["ImageId"]
    assert options(walk.launched(ImageId=image)) == ("optional", 1)
    ec2.modify_image_attribute(ImageId=image, ImdsSupport={"Value": "v2.0"})
    assert options(walk.launched(ImageId=image)) == ("required", 2)
    asked = {"HttpTokens": "optional", "HttpPutResponseHopLimit": 5}
    assert options(walk.launched(ImageId=image, MetadataOptions=asked)) == ("optional", 5)
