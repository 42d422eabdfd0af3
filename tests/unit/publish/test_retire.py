"""AMIs that nobody needs go in steps; whatever may be needed stays. Leftovers of runs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.cloud import images
from kiln.matrix.model import Publish
from kiln.publish import channels
from kiln.publish.retire import Retirement, plan_retirement, retire
from kiln.publish.sweep import leftovers, regions_of_account, sweep
from tests.unit.publish.channel import (
    AWS,
    HOME,
    LINE,
    OTHER,
    RECIPE,
    Bake,
    Client,
    back,
    described,
    published,
    resolved,
    verified_again,
)
from tests.unit.publish.faults import at_each_call, faulty

pytestmark = pytest.mark.slow
DUE = {"keep": {"nightly": 1}, "deprecate_after": 1, "deregister_after": 1}


def plan(**settings: Any) -> Retirement:
    """What is due two days from now, as `ahead` makes it, of AMIs that may go after a day."""
    return plan_retirement(AWS, [OTHER], {LINE: Publish.model_validate({**DUE, **settings})})


def why_kept(ami_id: str, **settings: Any) -> str:
    """Why an AMI stays; "" if it would go."""
    return next((image.why for image in plan(**settings).kept if image.ami_id == ami_id), "")


def next_step(ami_id: str, **settings: Any) -> str:
    return next((image.step for image in plan(**settings).would if image.ami_id == ami_id), "none")


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`retire` runs so many days from now; two, unless a test says otherwise."""

    def days(number: float) -> None:
        then = datetime.now(timezone.utc) + timedelta(days=number)
        monkeypatch.setattr("kiln.publish.retire.utc_now", lambda: then)

    days(2)
    return days


def step(ami_id: str, **settings: Any) -> tuple[str, str]:
    """Let `retire` do the next step of an AMI: the step, and its error; none that is due: ""."""
    mine = tuple(image for image in plan(**settings).would if image.ami_id == ami_id)
    done = retire(AWS, Retirement(mine, ())).would
    return (done[0].step, done[0].error) if done else ("", "")


@pytest.fixture
def two(bake: Bake) -> tuple[str, str]:
    """An AMI that its channel has left, and the one that it holds."""
    old = bake(1)
    published()
    new = bake(2)
    published()
    return old, new


def test_held_and_rollback_amis_stay(
    client: Client, bake: Bake, instance: str, tmp_path: Path
) -> None:
    first, old, new = bake(1), bake(2), bake(3)
    for ami_id in (first, old, new):
        published(OTHER, ami_id=ami_id)
    client("ec2").create_image(InstanceId=instance, Name=f"foreign {tmp_path.name}")
    there = resolved(client, "nightly", OTHER)
    assert why_kept(new) == why_kept(there) == f"nightly of {LINE} holds it"
    assert "could be rolled back to it" in why_kept(old, keep={"nightly": 2})
    assert next_step(old, keep={"nightly": 1}) == "deprecate"
    verified_again(new, tmp_path)
    published(OTHER, ami_id=new)
    assert "could be rolled back to it" in why_kept(old, keep={"nightly": 2})
    assert back("nightly") == old
    assert "could be rolled back to it" in why_kept(first, keep={"nightly": 2})
    published(OTHER, ami_id=new)
    never = {"deprecate_after": None, "deregister_after": None}
    assert why_kept(old, **never) == "without deprecate_after nothing will deprecate it"
    everywhere = plan_retirement(AWS, [], {LINE: Publish()}, only=False)
    assert {stays.region for stays in everywhere.kept} == {HOME, OTHER}
    assert len(everywhere.kept) == 6, "the foreign AMI is not listed"
    elsewhere = plan_retirement(AWS.in_region("us-west-2"), [HOME], {LINE: Publish()})
    assert old not in {image.ami_id for image in elsewhere.would}


def test_ami_being_published_stays(
    client: Client, bake: Bake, ahead: Callable[[float], None]
) -> None:
    """It has the tag of its line and its protection before a channel holds it."""
    ami_id = bake(1)

    def meanwhile(target: Any, image_id: str) -> None:
        raise KilnError("the retirement runs here", exit_status=1)

    with pytest.raises(KilnError, match="runs here"):
        published(OTHER, smoke=meanwhile)
    (copy,) = images.own_images(AWS.in_region(OTHER))
    assert copy.line == LINE
    ahead(0)
    for image in (ami_id, copy.ami_id):
        assert why_kept(image).startswith("next step: deprecate, on ")


def test_each_step_waits_its_days_from_the_one_before(
    client: Client,
    two: tuple[str, str],
    ahead: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ec2 = client("ec2")
    kept = {"DeleteSnapshotResults": [{"SnapshotId": "snap-1", "ReturnCode": "client-error"}]}
    answered(monkeypatch, "DeregisterImage", lambda answer: answer.update(kept))
    disk = described(client, two[0])["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    days = {"deprecate_after": 5, "deregister_after": 30}
    done = []
    for day in (4.9, 200, 200.9, 201.1, 201.2, 230, 231.2):
        ahead(day)
        done.append(step(two[0], **days))
    assert [name for name, _ in done] == ["", "deprecate", "", "disable", "", "", "deregister"]
    assert "snap-1 (client-error)" in done.pop()[1]
    assert [error for _, error in done if error] == []
    assert two[0] not in {image.ami_id for image in images.own_images(AWS)}
    left = {snapshot["SnapshotId"] for snapshot in ec2.describe_snapshots()["Snapshots"]}
    assert disk not in left


def test_ami_named_by_a_parameter_stays(client: Client, bake: Bake) -> None:
    """That of a launch template, with its version, and any of the data type of AMIs."""
    ec2, ssm = client("ec2"), client("ssm")
    published(OTHER, ami_id=(old := bake(1)))
    copy = resolved(client, "nightly", OTHER)
    published(OTHER, ami_id=(new := bake(2)))
    channel = channels.image_parameter(LINE, "nightly")
    ssm.put_parameter(Name="/mine/gpu", Value=old, Type="String")
    for name in (f"{channel}:1", "/mine/gpu", "/mine/none", f"{channel}:9", "/aws/service/x"):
        ec2.create_launch_template(
            LaunchTemplateName="pinned", LaunchTemplateData={"ImageId": f"resolve:ssm:{name}"}
        )
        named = name in (f"{channel}:1", "/mine/gpu")
        why = f"used by launch template pinned version 1 by {name}" if named else ""
        assert why_kept(old) == why
        ec2.delete_launch_template(LaunchTemplateName="pinned")
    ours = {"Type": "String", "DataType": "aws:ec2:image"}
    for number in range(12):  # more than SSM gives in an answer
        ssm.put_parameter(Name=f"/mine/{number:02}", Value=new, **ours)
    ssm.put_parameter(Name="/mine/image", Value=old, **ours)
    client("ssm", OTHER).put_parameter(Name="/theirs", Value=copy, **ours)
    assert why_kept(old) == "used by parameter /mine/image"
    assert why_kept(copy) == "used by parameter /theirs"
    names = ["/mine/gpu", "/mine/image", *(f"/mine/{number:02}" for number in range(12))]
    for first in (0, 10):
        ssm.delete_parameters(Names=names[first : first + 10])
    client("ssm", OTHER).delete_parameter(Name="/theirs")


def test_ami_of_a_fleet_stays(
    client: Client, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = {"ImageId": two[0], "InstanceType": "t3.micro"}
    fleet = {
        "FleetId": "fleet-1",
        "FleetState": "active",
        "LaunchTemplateConfigs": [{"Overrides": [launch]}],
    }
    spot = {
        "SpotFleetRequestId": "sfr-1",
        "SpotFleetRequestState": "active",
        "SpotFleetRequestConfig": {"LaunchSpecifications": [launch]},
    }
    listed = {"Fleets": [fleet], "SpotFleetRequestConfigs": [spot]}
    answered(monkeypatch, "DescribeFleets", lambda answer: answer.update(listed))
    answered(monkeypatch, "DescribeSpotFleetRequests", lambda answer: answer.update(listed))
    assert why_kept(two[0]) == "used by EC2 Fleet fleet-1, Spot Fleet sfr-1"
    listed["Fleets"] = [{**fleet, "FleetId": f"fleet-{number}"} for number in range(4)]
    assert why_kept(two[0]).endswith("fleet-2 and 2 more")
    listed["Fleets"] = [fleet]
    fleet["FleetState"], spot["SpotFleetRequestState"] = "deleted", "cancelled_running"
    assert next_step(two[0]) == "deprecate"


def test_deprecated_ami_stays_while_in_doubt(
    client: Client, two: tuple[str, str], ahead: Callable[[float], None]
) -> None:
    ec2, old = client("ec2"), [two[0]]
    only = {"deregister_after": None}
    assert step(two[0], **only) == ("deprecate", "")
    ahead(3000)
    assert why_kept(two[0], **only) == "without deregister_after nothing will disable it"
    ec2.enable_image_deregistration_protection(ImageId=two[0])
    assert why_kept(two[0]).startswith("protected from deregistration by somebody")
    ec2.disable_image_deregistration_protection(ImageId=two[0])
    assert next_step(two[0]) == "disable"
    ec2.create_tags(Resources=old, Tags=[{"Key": "kiln:retiring", "Value": "yes"}])
    assert why_kept(two[0]) == "its tag kiln:retiring is not the date of a step"
    ec2.create_tags(Resources=old, Tags=[{"Key": "kiln:keep", "Value": "audit"}])
    assert why_kept(two[0]) == "tagged kiln:keep"


def test_named_ami_stays(client: Client, two: tuple[str, str]) -> None:
    ec2, groups, old = client("ec2"), client("autoscaling"), two[0]
    ec2.create_launch_template(LaunchTemplateName="old", LaunchTemplateData={"ImageId": old})
    assert why_kept(old) == "used by launch template old version 1"
    ec2.delete_launch_template(LaunchTemplateName="old")
    groups.create_launch_configuration(
        LaunchConfigurationName="older", ImageId=old, InstanceType="t3.micro"
    )
    assert why_kept(old) == "used by launch configuration older"
    groups.delete_launch_configuration(LaunchConfigurationName="older")
    ec2.create_launch_template(LaunchTemplateName="other", LaunchTemplateData={"ImageId": two[1]})
    overrides = [{"InstanceType": "p5.48xlarge", "ImageId": old}]
    groups.create_auto_scaling_group(
        AutoScalingGroupName="mixed",
        MinSize=0,
        MaxSize=0,
        VPCZoneIdentifier=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
        MixedInstancesPolicy={
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "other", "Version": "1"},
                "Overrides": overrides,
            }
        },
    )
    assert why_kept(old) == "used by Auto Scaling group mixed"
    groups.delete_auto_scaling_group(AutoScalingGroupName="mixed", ForceDelete=True)
    ec2.delete_launch_template(LaunchTemplateName="other")
    launched = ec2.run_instances(ImageId=old, InstanceType="t3.micro", MinCount=1, MaxCount=1)
    instance_id = launched["Instances"][0]["InstanceId"]
    assert why_kept(old) == f"used by instance {instance_id}"
    ec2.terminate_instances(InstanceIds=[instance_id])
    assert images.require_image(AWS, old).launched


def answered(
    monkeypatch: pytest.MonkeyPatch, operation: str, change: Callable[[Any], None]
) -> None:
    """From now on what AWS answers to an operation is changed so."""

    def act(region: str, name: str, parameters: dict[str, Any], call: Callable[[], Any]) -> Any:
        answer = call()
        if name == operation:
            change(answer)
        return answer

    at_each_call(monkeypatch, act)


def test_shared_ami_stays_until_reported_unused(
    client: Client,
    two: tuple[str, str],
    ahead: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the matrix shares its line no more."""
    old = two[0]
    permission = {"Add": [{"UserId": "111122223333"}]}
    client("ec2").modify_image_attribute(ImageId=old, LaunchPermission=permission)
    declared = {"share": {"accounts": ["111122223333"]}}
    for settings in (declared, {}):
        assert "--apply asks EC2 for a report" in why_kept(old, **settings)
    ahead(1.9)  # a report is fresh for two days
    asked = plan_retirement(AWS, [], {LINE: Publish.model_validate(DUE)}, ask=True)
    assert old in {image.ami_id for image in asked.kept}
    for settings in (declared, {}):
        assert next_step(old, **settings) == "deprecate"
    entries = [
        {"AccountId": "111122223333", "ResourceType": "ec2:Instance", "UsageCount": 2},
        {"AccountId": "444455556666", "ResourceType": "ec2:Instance", "UsageCount": 0},
    ]
    answered(
        monkeypatch,
        "DescribeImageUsageReportEntries",
        lambda answer: answer.update(ImageUsageReportEntries=entries),
    )
    assert why_kept(old) == "used by account 111122223333 (2 ec2:Instance)"


def test_ami_changed_since_the_plan_stays(client: Client, two: tuple[str, str]) -> None:
    mine = Retirement(tuple(image for image in plan().would if image.ami_id == two[0]), ())
    back("nightly")
    (stays,) = retire(AWS, mine).kept
    assert stays.why == f"nightly of {LINE} has come to hold it"
    held = channels.held(AWS, LINE, "nightly")
    assert held and held.image_id == two[0]
    published(ami_id=two[1])
    client("ec2").disable_image_deregistration_protection(ImageId=two[0])
    client("ec2").deregister_image(ImageId=two[0])
    assert retire(AWS, mine) == Retirement((), ())


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes EC2 say something else of each AMI: fields of Image; `days`: its age."""

    def says(days: int = 0, **fields: Any) -> None:
        created = datetime.now(timezone.utc) - timedelta(days=days)
        there = [replace(image, created=created, **fields) for image in images.own_images(AWS)]
        monkeypatch.setattr(
            "kiln.publish.retire.own_images", lambda target: there if target.region == HOME else []
        )

    return says


def test_recently_launched_ami_stays(two: tuple[str, str], known: Callable[..., None]) -> None:
    now = datetime.now(timezone.utc)
    for launched, why in (
        (now + timedelta(hours=2), f"launched on {now + timedelta(hours=2):%Y-%m-%d}"),
        (now + timedelta(minutes=50), ""),
    ):
        known(launched=launched)
        assert why_kept(two[0]) == why
    known(days=20, launched=now - timedelta(days=6))
    assert why_kept(two[0]) == ""


def test_unpublished_ami_goes_by_its_row_unless_protected(
    bake: Bake, known: Callable[..., None]
) -> None:
    ami_id = bake(1)
    known()
    for settings, goes in (
        ({LINE: Publish()}, False),
        ({"": Publish(deprecate_after=1)}, True),
        ({RECIPE.name: Publish(), "": Publish(deprecate_after=1)}, False),
    ):
        would = plan_retirement(AWS, [], settings).would
        assert (ami_id in {image.ami_id for image in would}) == goes, settings
    known(protected=True)
    assert why_kept(ami_id) == "protected from deregistration"


def test_sweep_removes_leftovers_of_old_runs_only(client: Client, instance: str) -> None:
    sweep(AWS, leftovers(AWS, [HOME, OTHER], timedelta(hours=24)))  # of other tests
    assert {HOME, OTHER} < set(regions_of_account(AWS))
    ec2 = client("ec2", OTHER)
    ended, now = "20251102T000000Z-bbbb", datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ-ffff")
    made = {}
    (parent,) = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]

    def tagged(kind: str, run_id: str) -> Any:
        return [{"ResourceType": kind, "Tags": [{"Key": "kiln:run-id", "Value": run_id}]}]

    for run_id in (ended, now, "somebody's"):
        key, disk = f"kiln-{run_id}", {"AvailabilityZone": f"{OTHER}a", "Size": 1}
        ec2.create_key_pair(KeyName=key, TagSpecifications=tagged("key-pair", run_id))
        volume = ec2.create_volume(**disk, TagSpecifications=tagged("volume", run_id))
        template = ec2.create_launch_template(
            LaunchTemplateName=f"packer-fleet-launch-template-{run_id[-4:]}",
            LaunchTemplateData={"InstanceType": "g4dn.xlarge"},
            TagSpecifications=tagged("launch-template", run_id),
        )["LaunchTemplate"]
        group = ec2.create_security_group(
            GroupName=key, Description="x", TagSpecifications=tagged("security-group", run_id)
        )
        made[run_id] = {key, volume["VolumeId"], template["LaunchTemplateId"], group["GroupId"]}
    one = {"ImageId": parent["Instances"][0]["ImageId"], "MinCount": 1, "MaxCount": 1}
    launched = client("ec2").run_instances(
        **one, InstanceType="t3.micro", TagSpecifications=tagged("instance", ended)
    )
    found = leftovers(AWS, [HOME, OTHER], timedelta(hours=24))
    old = {launched["Instances"][0]["InstanceId"], *made[ended]}
    assert {resource.id for resource in found} == old
    # EC2 may go on calling it so for a while.
    states = ["stopping", "pending"]

    def not_ended(answer: Any) -> None:
        if states:
            answer["Reservations"][0]["Instances"][0]["State"] = {"Name": states.pop()}

    with pytest.MonkeyPatch.context() as patch:
        answered(patch, "DescribeInstances", not_ended)
        assert {resource.id for resource in sweep(AWS, found) if not resource.error} == old
    assert not states
    left = {key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]}
    assert {f"kiln-{now}", "kiln-somebody's"} <= left
    assert not leftovers(AWS, [HOME, OTHER], timedelta(hours=24))
    assert {gone.error for gone in sweep(AWS, found)} == {""}, "removed meanwhile"
    mine = leftovers(AWS, [OTHER], timedelta(hours=24), now)
    assert {resource.id for resource in mine} == made[now]
    assert {gone.error for gone in sweep(AWS, mine)} == {""}
    assert not leftovers(AWS, [OTHER], timedelta(hours=24), now)


def test_snapshot_of_a_new_ami_is_no_leftover(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one with which somebody has registered an AMI that is not ours."""
    ec2 = client("ec2")
    made: list[str] = []

    def somebody_registers(region: str, operation: str) -> None:
        if operation == "DescribeImages" and not made:
            made.append("")
            made[0] = bake(1)
            disk = described(client, made[0])["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
            run_id = [{"Key": "kiln:run-id", "Value": "20261101T000000Z-aaaa"}]
            ec2.create_tags(Resources=[disk], Tags=run_id)
            made.append(disk)

    def loose() -> set[str]:
        return {left.id for left in leftovers(AWS, [HOME], timedelta(hours=24))}

    with faulty(somebody_registers):
        found = loose()
    assert made[1] not in found
    ec2.delete_tags(Resources=[made[0]], Tags=[{"Key": "kiln:run-id"}])
    assert made[1] not in loose()
    ec2.deregister_image(ImageId=made[0])
    assert made[1] in loose()


def test_failed_ami_is_a_leftover(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ami_id = bake(1)
    disk = described(client, ami_id)["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    run_id = [{"Key": "kiln:run-id", "Value": "20261101T000000Z-aaaa"}]
    client("ec2").create_tags(Resources=[disk], Tags=run_id)
    state = {"now": "pending"}

    def not_complete(answer: Any) -> None:
        for image in answer["Images"]:
            if image["ImageId"] == ami_id:
                # EC2 lists the snapshots of an image only when it is complete.
                image |= {"State": state["now"], "BlockDeviceMappings": []}

    def found() -> set[str]:
        return {left.id for left in leftovers(AWS, [HOME], timedelta(hours=24))}

    answered(monkeypatch, "DescribeImages", not_complete)
    assert not {ami_id, disk} & found()
    state["now"] = "failed"
    assert {ami_id, disk} <= found()
