"""AMIs that nobody needs go in steps; whatever may be needed stays. Leftovers of runs are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from kiln.base.errors import KilnError
from kiln.cli.channel_tables import retirement_text
from kiln.cloud import removal
from kiln.matrix.publishing import Publish
from kiln.publish import channels, own_images
from kiln.publish.retire import Going, Kept, Retirement, plan_retirement, retire
from kiln.publish.sweep import Leftover, leftovers, sweep
from tests.unit.publish.channel import (
    AWS,
    HOME,
    LINE,
    OTHER,
    Bake,
    back,
    described,
    published,
    resolved,
    verified_again,
)
from tests.unit.publish.faults import Call, faulty


def plan(**settings: Any) -> Retirement:
    return plan_retirement(AWS, [OTHER], {LINE: Publish(**{"keep": {"nightly": 1}, **settings})})


def why_kept(ami_id: str, **settings: Any) -> str:
    """Why an AMI stays; "" if it would go."""
    return next((image.why for image in plan(**settings).kept if image.ami_id == ami_id), "")


def next_step(ami_id: str, **settings: Any) -> str:
    return next((image.step for image in plan(**settings).would if image.ami_id == ami_id), "none")


@pytest.fixture
def two(bake: Bake) -> tuple[str, str]:
    """An AMI that its channel has left, and the one that it holds."""
    old = bake(1)
    published(OTHER)
    new = bake(2)
    published(OTHER)
    return old, new


def test_what_a_channel_holds_stays(client: Callable[..., Any], two: tuple[str, str]) -> None:
    assert why_kept(two[1]) == f"nightly of {LINE} holds it"
    assert why_kept(resolved(client, "nightly", OTHER)) == f"nightly of {LINE} holds it"


def test_what_a_channel_could_be_rolled_back_to_stays(two: tuple[str, str]) -> None:
    assert "could be rolled back to it" in why_kept(two[0], keep={"nightly": 2})
    assert next_step(two[0], keep={"nightly": 1}) == "deprecate"


def test_what_a_channel_could_go_back_to_after_a_rollback_stays(bake: Bake) -> None:
    first, second = bake(1), bake(2)
    for ami_id in (first, second, bake(3)):
        published(ami_id=ami_id)
    assert back("nightly") == second
    assert "could be rolled back to it" in why_kept(first, keep={"nightly": 2})
    assert back("nightly") == first


def test_an_ami_that_was_verified_twice_is_one_release(bake: Bake, tmp_path: Path) -> None:
    old, new = bake(1), bake(2)
    published(ami_id=old)
    published(ami_id=new)
    verified_again(new, tmp_path)
    published(OTHER, ami_id=new)
    assert "could be rolled back to it" in why_kept(old, keep={"nightly": 2})


def test_what_a_line_that_is_baked_in_another_region_could_be_rolled_back_to_stays(
    two: tuple[str, str],
) -> None:
    elsewhere = plan_retirement(AWS.in_region("us-west-2"), [HOME], {LINE: Publish()})
    assert two[0] not in {image.ami_id for image in elsewhere.would}


def test_an_ami_whose_publication_is_under_way_stays_and_its_copies(
    client: Callable[..., Any], bake: Bake
) -> None:
    """It has the tag of its line and its protection before a channel holds it."""
    ami_id = bake(1)

    def meanwhile(target: Any, image_id: str) -> None:
        raise KilnError("the retirement runs here", exit_status=1)

    with pytest.raises(KilnError, match="runs here"):
        published(OTHER, smoke=meanwhile)
    (copy,) = own_images.own_images(AWS.in_region(OTHER))
    assert copy.line == LINE
    for image in (ami_id, copy.ami_id):
        assert why_kept(image) == "built less than a day ago and not published"


def test_an_ami_goes_step_by_step_with_its_snapshots(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    old, ec2 = two[0], client("ec2")
    (disk,) = ec2.describe_images(ImageIds=[old])["Images"][0]["BlockDeviceMappings"]
    for step in ("deprecate", "disable", "deregister"):
        planned = plan()
        mine = Retirement(tuple(image for image in planned.would if image.ami_id == old), ())
        assert [(image.step, image.error) for image in retire(AWS, mine).would] == [(step, "")]
    assert old not in {image.ami_id for image in own_images.own_images(AWS)}
    left = ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert disk["Ebs"]["SnapshotId"] not in {image["SnapshotId"] for image in left}


def test_a_snapshot_that_ec2_says_is_in_use_for_a_moment_is_deleted(
    client: Callable[..., Any], two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal.time, "sleep", lambda seconds: None)
    real, refused = BaseClient._make_api_call, list[str]()  # type: ignore[attr-defined]

    def in_use_once(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        if operation == "DeleteSnapshot" and not refused:
            refused.append(operation)
            answer = {"Error": {"Code": "InvalidSnapshot.InUse", "Message": "in use"}}
            raise ClientError(answer, operation)  # type: ignore[arg-type]
        return real(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", in_use_once)
    for _ in ("deprecate", "disable", "deregister"):
        mine = Retirement(tuple(image for image in plan().would if image.ami_id == two[0]), ())
        done = retire(AWS, mine).would
    assert [image.error for image in done] == [""]
    assert refused


def test_nothing_changes_while_it_is_only_planned(two: tuple[str, str]) -> None:
    plan()
    (image,) = (image for image in own_images.own_images(AWS) if image.ami_id == two[0])
    assert (image.retiring, image.protected, image.state) == (False, True, "available")


def test_an_ami_that_is_used_stays(client: Callable[..., Any], two: tuple[str, str]) -> None:
    ec2, old = client("ec2"), two[0]
    ec2.create_launch_template(LaunchTemplateName="old", LaunchTemplateData={"ImageId": old})
    assert why_kept(old) == "used by launch template old version 1"
    ec2.delete_launch_template(LaunchTemplateName="old")
    client("autoscaling").create_launch_configuration(
        LaunchConfigurationName="older", ImageId=old, InstanceType="t3.micro"
    )
    assert why_kept(old) == "used by launch configuration older"
    client("autoscaling").delete_launch_configuration(LaunchConfigurationName="older")
    launched = ec2.run_instances(ImageId=old, InstanceType="t3.micro", MinCount=1, MaxCount=1)
    runs = launched["Instances"][0]["InstanceId"]
    assert why_kept(old) == f"used by instance {runs}"


def test_an_ami_that_a_launch_template_names_by_a_parameter_stays(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    ec2, ssm = client("ec2"), client("ssm")
    channel = channels.image_parameter(LINE, "nightly")
    ssm.put_parameter(Name="/mine/gpu", Value=two[0], Type="String")
    for name in (f"{channel}:1", "/mine/gpu", "/mine/none", f"{channel}:9", "/aws/service/x"):
        ec2.create_launch_template(
            LaunchTemplateName="pinned", LaunchTemplateData={"ImageId": f"resolve:ssm:{name}"}
        )
        named = name in (f"{channel}:1", "/mine/gpu")
        why = f"used by launch template pinned version 1 by {name}" if named else ""
        assert why_kept(two[0]) == why
        ec2.delete_launch_template(LaunchTemplateName="pinned")
    ssm.delete_parameter(Name="/mine/gpu")


@pytest.fixture
def parameter_of(client: Callable[..., Any]) -> Iterator[Callable[..., None]]:
    """Makes somebody's parameters; they go after the test."""
    made: list[tuple[str, str]] = []

    def make(name: str, ami_id: str, region: str = HOME, kind: str = "aws:ec2:image") -> None:
        put = client("ssm", region).put_parameter
        put(Name=name, Value=ami_id, Type="String", DataType=kind)
        made.append((region, name))

    yield make
    for region, name in made:
        client("ssm", region).delete_parameter(Name=name)


def test_an_ami_that_somebodys_parameter_of_amis_names_stays(
    two: tuple[str, str], parameter_of: Callable[..., None]
) -> None:
    for number in range(12):  # more than SSM gives in an answer
        parameter_of(f"/mine/{number:02}", two[1])
    parameter_of("/mine/gpu", two[0])
    assert why_kept(two[0]) == "used by parameter /mine/gpu"


def test_a_parameter_of_another_region_keeps_the_copy_there(
    two: tuple[str, str], parameter_of: Callable[..., None]
) -> None:
    copies = own_images.own_images(AWS.in_region(OTHER))
    (copy,) = (image for image in copies if image.tags["kiln:source-image"] == two[0])
    parameter_of("/theirs/gpu", copy.ami_id, OTHER)
    assert why_kept(copy.ami_id) == "used by parameter /theirs/gpu"
    assert next_step(two[0]) == "deprecate"


def test_a_parameter_of_text_that_no_template_names_keeps_no_ami(
    two: tuple[str, str], parameter_of: Callable[..., None]
) -> None:
    parameter_of("/mine/note", two[0], kind="text")
    assert next_step(two[0]) == "deprecate"


def test_a_plan_reads_what_the_channels_hold_once(two: tuple[str, str]) -> None:
    with faulty(lambda call: None) as sent:
        plan()
    asked = [call.action for call in sent if call.service == "ssm"]
    assert (asked.count("DescribeParameters"), asked.count("GetParameters")) == (2, 0)


def test_an_ami_that_an_auto_scaling_group_names_for_an_instance_type_stays(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    ec2, groups = client("ec2"), client("autoscaling")
    ec2.create_launch_template(LaunchTemplateName="other", LaunchTemplateData={"ImageId": two[1]})
    groups.create_auto_scaling_group(
        AutoScalingGroupName="mixed",
        MinSize=0,
        MaxSize=0,
        VPCZoneIdentifier=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
        MixedInstancesPolicy={
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "other", "Version": "1"},
                "Overrides": [{"InstanceType": "p5.48xlarge", "ImageId": two[0]}],
            }
        },
    )
    assert why_kept(two[0]) == "used by Auto Scaling group mixed"
    groups.delete_auto_scaling_group(AutoScalingGroupName="mixed", ForceDelete=True)
    ec2.delete_launch_template(LaunchTemplateName="other")


def test_a_tag_keeps_an_ami(client: Callable[..., Any], two: tuple[str, str]) -> None:
    client("ec2").create_tags(Resources=[two[0]], Tags=[{"Key": "kiln:keep", "Value": "audit"}])
    assert why_kept(two[0]) == "tagged kiln:keep"


def test_an_ami_that_somebody_protects_on_its_way_out_stays(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    mine = Retirement(tuple(image for image in plan().would if image.ami_id == two[0]), ())
    retire(AWS, mine)
    client("ec2").enable_image_deregistration_protection(ImageId=two[0])
    assert why_kept(two[0]).startswith("protected from deregistration by somebody")


def test_an_ami_stays_until_its_days_are_over(two: tuple[str, str]) -> None:
    assert why_kept(two[0], deprecate_after=30) == "0 days old; deprecated after 30"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes EC2 say something else of each AMI: fields of OwnImage; `days`: its age."""

    def says(days: int = 0, **fields: Any) -> None:
        created = datetime.now(timezone.utc) - timedelta(days=days)
        there = [replace(image, created=created, **fields) for image in own_images.own_images(AWS)]
        monkeypatch.setattr(
            "kiln.publish.retire.own_images",
            lambda target: there if target.region == HOME else [],
        )

    return says


def test_an_ami_that_was_launched_lately_stays_unless_that_was_its_verification(
    two: tuple[str, str], known: Callable[..., None]
) -> None:
    now = datetime.now(timezone.utc)
    for launched, why in (
        (now + timedelta(hours=2), f"launched on {now + timedelta(hours=2):%Y-%m-%d}"),
        (now + timedelta(minutes=50), ""),
    ):
        known(launched=launched)
        assert why_kept(two[0]) == why
    known(days=20, launched=now - timedelta(days=8))
    assert why_kept(two[0]) == ""


def test_an_ami_that_was_never_published_goes_after_a_day_unless_it_is_protected(
    bake: Bake, known: Callable[..., None]
) -> None:
    ami_id = bake(1)
    known(days=2)
    assert next_step(ami_id) == "deprecate"
    known(days=2, protected=True)
    assert why_kept(ami_id) == "protected from deregistration"


def test_a_disabled_ami_stays_until_its_days_are_over(
    two: tuple[str, str], known: Callable[..., None]
) -> None:
    days = {"deprecate_after": 5, "deregister_after": 30}
    gone = {"kiln:retiring": "2026-11-01T00:00:00Z"}
    known(days=10, state="available", tags=gone, protected=False)
    assert next_step(two[0], **days) == "disable"
    known(days=10, state="disabled", tags=gone, protected=False)
    assert why_kept(two[0], **days) == "10 days old; deregistered after 30"
    known(days=31, state="disabled", tags=gone, protected=False)
    assert next_step(two[0], **days) == "deregister"


def test_what_ec2_says_of_the_last_launch_is_read_with_the_ami(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    assert not (own := own_images.own_image(AWS, two[0])) or own.launched is None
    ec2 = client("ec2")
    made = ec2.run_instances(ImageId=two[0], InstanceType="t3.micro", MinCount=1, MaxCount=1)
    ec2.terminate_instances(InstanceIds=[made["Instances"][0]["InstanceId"]])
    own = own_images.own_image(AWS, two[0])
    assert own
    assert own.launched


def test_requests_of_a_plan_do_not_grow_with_the_amis(bake: Bake, two: tuple[str, str]) -> None:
    """What is asked per line and per region is asked once, however many AMIs there are."""
    counted = []
    for day in (9, 10):
        with faulty(lambda call: None) as sent:
            counted.append((len(plan().would), len(sent)))
        bake(day)
        published(OTHER)
    (few, calls), (more, as_many) = counted
    assert more > few
    assert as_many == calls


def test_a_shared_ami_stays_until_a_report_says_that_no_account_uses_it(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    shared = {"share": {"accounts": ["111122223333"]}}
    assert "--apply asks EC2 for a report" in why_kept(two[0], **shared)
    settings = {LINE: Publish.model_validate({"keep": {"nightly": 1}, **shared})}
    plan_retirement(AWS, [], settings, ask=True)
    assert next_step(two[0], **shared) == "deprecate"


def answered(
    monkeypatch: pytest.MonkeyPatch, operation: str, change: Callable[[Any], None]
) -> None:
    """From now on what AWS answers to an operation is changed so."""
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def call(self: Any, name: str, parameters: dict[str, Any]) -> Any:
        answer = real(self, name, parameters)
        if name == operation:
            change(answer)
        return answer

    monkeypatch.setattr(BaseClient, "_make_api_call", call)


def test_a_shared_ami_that_another_account_uses_stays(
    client: Callable[..., Any], two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"share": {"accounts": ["111122223333"]}}
    settings = {LINE: Publish.model_validate({"keep": {"nightly": 1}, **shared})}
    plan_retirement(AWS, [], settings, ask=True)

    def used(answer: Any) -> None:
        entries = [
            {"AccountId": "111122223333", "ResourceType": "ec2:Instance", "UsageCount": 2},
            {"AccountId": "444455556666", "ResourceType": "ec2:Instance", "UsageCount": 0},
        ]
        answer["ImageUsageReportEntries"] = entries

    answered(monkeypatch, "DescribeImageUsageReportEntries", used)
    assert why_kept(two[0], **shared) == "used by account 111122223333 (2 ec2:Instance)"


def test_an_ami_that_is_still_shared_stays_though_the_matrix_shares_its_line_no_more(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    permission = {"Add": [{"UserId": "111122223333"}]}
    client("ec2").modify_image_attribute(ImageId=two[0], LaunchPermission=permission)
    mine = Retirement(tuple(image for image in plan().would if image.ami_id == two[0]), ())
    first, second = retire(AWS, mine), retire(AWS, mine)
    assert first.would == ()
    (stays,) = first.kept
    assert stays.why == "shared: EC2 makes a report of its users; run retire again later"
    assert [(step.step, step.error) for step in second.would] == [("deprecate", "")]


def test_an_ami_that_somebody_else_removed_since_the_plan_is_not_a_failure(
    client: Callable[..., Any], two: tuple[str, str]
) -> None:
    mine = Retirement(tuple(image for image in plan().would if image.ami_id == two[0]), ())
    client("ec2").disable_image_deregistration_protection(ImageId=two[0])
    client("ec2").deregister_image(ImageId=two[0])
    assert retire(AWS, mine) == Retirement((), ())


def test_an_ami_that_is_not_ours_is_not_even_listed(
    client: Callable[..., Any], instance: str, tmp_path: Any
) -> None:
    foreign = client("ec2").create_image(InstanceId=instance, Name=f"foreign {tmp_path.name}")
    listed = plan()
    assert foreign["ImageId"] not in {image.ami_id for image in (*listed.would, *listed.kept)}


def test_an_ami_that_a_channel_came_to_hold_since_the_plan_stays(two: tuple[str, str]) -> None:
    planned = plan()
    back("nightly")
    mine = Retirement(tuple(image for image in planned.would if image.ami_id == two[0]), ())
    (stays,) = retire(AWS, mine).kept
    assert stays.why == f"nightly of {LINE} has come to hold it"
    held = channels.held(AWS, LINE, "nightly")
    assert held and held.image_id == two[0]


def test_what_old_runs_left_is_found_and_removed_and_nothing_else(
    client: Callable[..., Any],
) -> None:
    sweep(AWS, leftovers(AWS, [HOME, OTHER], timedelta(hours=24)))  # of other tests
    ec2 = client("ec2", OTHER)
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ-ffff")
    made = {}
    for run_id in ("20251102T000000Z-bbbb", now, "somebody's"):
        tag = [{"Key": "kiln:run-id", "Value": run_id}]
        ec2.create_key_pair(
            KeyName=f"kiln-{run_id}",
            TagSpecifications=[{"ResourceType": "key-pair", "Tags": tag}],
        )
        volume = ec2.create_volume(
            AvailabilityZone=f"{OTHER}a",
            Size=1,
            TagSpecifications=[{"ResourceType": "volume", "Tags": tag}],
        )
        template = ec2.create_launch_template(
            LaunchTemplateName=f"packer-fleet-launch-template-{run_id[-4:]}",
            LaunchTemplateData={"InstanceType": "g4dn.xlarge"},
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tag}],
        )["LaunchTemplate"]
        made[run_id] = {volume["VolumeId"], template["LaunchTemplateId"]}
    found = leftovers(AWS, [HOME, OTHER], timedelta(hours=24))
    old = {"kiln-20251102T000000Z-bbbb", *made["20251102T000000Z-bbbb"]}
    assert {resource.id for resource in found} == old
    assert {resource.id for resource in sweep(AWS, found) if not resource.error} == old
    left = {key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]}
    assert {f"kiln-{now}", "kiln-somebody's"} <= left
    assert not old & left
    assert not leftovers(AWS, [HOME, OTHER], timedelta(hours=24))


def test_sweep_of_a_run_finds_it_alone_however_young(client: Callable[..., Any]) -> None:
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for run_id in (f"{now}-000a", f"{now}-000b"):
        tag = [{"Key": "kiln:run-id", "Value": run_id}]
        client("ec2", OTHER).create_security_group(
            GroupName=f"kiln-{run_id}",
            Description="a test's",
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tag}],
        )
    (found,) = leftovers(AWS, [OTHER], timedelta(hours=24), f"{now}-000a")
    assert (found.kind, found.run_id) == ("security group", f"{now}-000a")
    assert [gone.error for gone in sweep(AWS, [found])] == [""]
    assert not leftovers(AWS, [OTHER], timedelta(hours=24), f"{now}-000a")


def test_a_snapshot_of_an_ami_that_is_made_while_leftovers_are_listed_is_none(
    client: Callable[..., Any], bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one with which somebody has registered an AMI that is not ours."""
    ec2 = client("ec2")
    made: list[str] = []

    def somebody_registers(call: Call) -> None:
        if call.action == "DescribeImages" and not made:
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


def test_a_failed_ami_is_left_over_and_the_snapshot_of_a_pending_one_is_not(
    client: Callable[..., Any], bake: Bake, monkeypatch: pytest.MonkeyPatch
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


def test_a_leftover_that_somebody_else_has_removed_is_no_failure() -> None:
    gone = [
        Leftover(HOME, kind, name, "20251102T000000Z-bbbb")
        for kind, name in (
            ("instance", "i-0123456789abcdef0"),
            ("AMI", "ami-0123456789abcdef0"),
            ("snapshot", "snap-0123456789abcdef0"),
            ("volume", "vol-0123456789abcdef0"),
            ("security group", "sg-0123456789abcdef0"),
            ("launch template", "lt-0123456789abcdef0"),
        )
    ]
    assert [leftover.error for leftover in sweep(AWS, gone)] == [""] * len(gone)


def test_the_last_line_counts_what_has_gone_and_what_could_not() -> None:
    stays = Kept("ami-1", HOME, "stable of x holds it")
    goes, refused = (Going(f"ami-{number}", HOME, "disable", "unused") for number in (2, 3))
    refused = replace(refused, error="EC2 refused")

    def last(*going: Going, applied: bool) -> str:
        return retirement_text(going, [stays], applied=applied).splitlines()[-1]

    assert last(applied=False) == "nothing would go"
    assert last(goes, applied=False) == "1 of 2 AMIs would go one step; --apply does it"
    assert last(goes, refused, applied=True) == "1 of 3 AMIs have gone one step, 1 could not"
