"""What a run makes in EC2, and taking it away again. EC2 is moto, in this process."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import ClientError

from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.cloud import cleanup
from kiln.cloud.network import forget_key, make_access
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.pipeline import bake
from tests.unit.publish.faults import at_each_call

pytestmark = pytest.mark.slow

AWS = Target("a test", "eu-central-1", account="123456789012")
MINE = "20261121T000000Z-aaaa"
OTHERS = "20261121T000000Z-bbbb"
GONE = "i-0123456789abcdef0"


Make = Callable[[str], dict[str, str]]


@pytest.fixture
def make(ec2: Any, tmp_path: Path) -> Make:
    """All that a run of that id makes until it has an AMI, by kind."""

    def everything(run_id: str) -> dict[str, str]:
        run = a_run(tmp_path, run_id)
        access = make_access(run, AWS, Account())
        instance = an_instance(ec2, run_id)
        image, snapshot = an_image(ec2, instance, f"row-{run_id}", cleanup.tags(run_id))
        volume = ec2.create_volume(
            AvailabilityZone="eu-central-1a",
            Size=1,
            TagSpecifications=[{"ResourceType": "volume", "Tags": cleanup.tags(run_id)}],
        )["VolumeId"]
        return {
            "instance": instance,
            "AMI": image,
            "snapshot": snapshot,
            "key pair": access.key_name,
            "security group": access.security_groups[0],
            "volume": volume,
            "launch template": a_launch_template(ec2, run_id),
        }

    return everything


def a_run(folder: Path, run_id: str) -> Run:
    run = Run(run_id, "row", folder / run_id)
    run.folder.mkdir(exist_ok=True)
    return run


def an_instance(ec2: Any, run_id: str) -> str:
    launched = ec2.run_instances(
        ImageId="ami-0123456789abcdef0",
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": cleanup.tags(run_id)}],
    )
    return str(launched["Instances"][0]["InstanceId"])


def a_launch_template(ec2: Any, run_id: str) -> str:
    """As Packer's plugin makes it for a Spot instance.

    github:hashicorp/packer-plugin-amazon
    common/step_run_spot_instance.go @5028903a63216243753d3b0285cddde196db627c
    """
    tags = [{"ResourceType": "launch-template", "Tags": cleanup.tags(run_id)}]
    name, data = f"packer-fleet-launch-template-{run_id}", {"InstanceType": "g4dn.xlarge"}
    made = ec2.create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData=data, TagSpecifications=tags
    )
    return str(made["LaunchTemplate"]["LaunchTemplateId"])


def an_image(ec2: Any, instance: str, name: str, tags: list[Any] | None) -> tuple[str, str]:
    """CreateImage, and what Packer does after it: tagging (or not yet)."""
    image = ec2.create_image(InstanceId=instance, Name=name)["ImageId"]
    mapping = ec2.describe_images(ImageIds=[image])["Images"][0]["BlockDeviceMappings"]
    snapshot = mapping[0]["Ebs"]["SnapshotId"]
    if tags:
        ec2.create_tags(Resources=[image, snapshot], Tags=tags)
    return image, snapshot


def there(ec2: Any) -> set[str]:
    """The ids of all that a run may leave, whoever's it is."""
    pages = ec2.describe_instances()["Reservations"]
    instances = [instance for page in pages for instance in page["Instances"]]
    return {
        *(i["InstanceId"] for i in instances if i["State"]["Name"] != "terminated"),
        *(image["ImageId"] for image in ec2.describe_images(Owners=["self"])["Images"]),
        *(
            snapshot["SnapshotId"]
            for snapshot in ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
        ),
        *(key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]),
        *(group["GroupId"] for group in ec2.describe_security_groups()["SecurityGroups"]),
        *(volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]),
        *(t["LaunchTemplateId"] for t in ec2.describe_launch_templates()["LaunchTemplates"]),
    }


def words(made: dict[str, str]) -> set[str]:
    return {f"{kind} {name}" for kind, name in made.items()}


def test_removal_leaves_kept_instance_and_its_group(ec2: Any, make: Make) -> None:
    made = make(MINE)
    stays = {kind: made[kind] for kind in ("instance", "security group")}
    done = cleanup.remove(
        MINE, AWS, amis=True, launched=[stays["instance"]], kept=tuple(stays.values())
    )
    assert (set(done.left), done.failures) == (words(stays), [])
    assert set(stays.values()) <= there(ec2)
    assert not there(ec2) & (set(made.values()) - set(stays.values()))


@pytest.mark.parametrize(
    ("ssh_interface", "login"),
    [
        ("public_ip", "/ssh/known_hosts ec2-user@{PublicIpAddress}"),
        ("session_manager", "aws ssm start-session --region eu-central-1 --target {InstanceId}"),
    ],
)
def test_kept_instance_is_named_with_its_login_and_sweep(
    ec2: Any, tmp_path: Path, ssh_interface: str, login: str
) -> None:
    run, draft = a_run(tmp_path, MINE), MagicMock()
    draft.run, instance_id = run, an_instance(ec2, MINE)
    described = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    access = make_access(run, AWS, Account())
    access = replace(access, network=replace(access.network, ssh_interface=ssh_interface))
    plan = MagicMock(target=AWS, account=Account())
    plan.recipe.distro.ssh_user = "ec2-user"
    said = bake.keep_instance(plan, draft, access)
    assert instance_id in draft.kept
    assert login.format(**described) in said
    assert f"./invoke sweep --run {MINE} --target aws --regions eu-central-1 --apply" in said


def test_access_waits_for_its_group_and_admits_ssh_only(
    ec2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "poll_seconds", 0)
    looks: list[str] = []

    def not_yet(region: str, operation: str, given: Any, call: Call) -> Any:
        looks.extend([operation] if operation == "DescribeSecurityGroups" else [])
        of_group = ("DescribeSecurityGroups", "AuthorizeSecurityGroupIngress")
        if operation in of_group and len(looks) < 3:
            fail(operation, "InvalidGroup.NotFound", "not yet")
        return call()

    with monkeypatch.context() as patch:
        at_each_call(patch, not_yet)
        access = make_access(a_run(tmp_path, MINE), AWS, Account())
    (group,) = ec2.describe_security_groups(GroupIds=list(access.security_groups))["SecurityGroups"]
    (rule,) = group["IpPermissions"]
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 22, 22)
    assert [block["CidrIp"] for block in rule["IpRanges"]] == ["192.0.2.7/32"]
    assert stat.S_IMODE(access.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(access.key_file.parent.stat().st_mode) == 0o700
    forget_key(a_run(tmp_path, MINE))
    assert not access.key_file.parent.exists()


def test_removal_takes_all_of_a_run_and_nothing_else(ec2: Any, make: Make) -> None:
    mine, others = make(MINE), make(OTHERS)
    before = there(ec2)
    done = cleanup.remove(MINE, AWS, amis=False)
    finished = {kind: mine[kind] for kind in ("AMI", "snapshot")}
    assert set(done.removed) == words(mine) - words(finished)
    assert set(finished.values()) <= there(ec2)
    done = cleanup.remove(MINE, AWS, amis=True)
    assert done.failures == []
    assert set(done.removed) == words(finished)
    gone = before - there(ec2)
    assert gone >= set(mine.values())
    assert gone & set(others.values()) == set()


Call = Callable[[], Any]


def fail(operation: str, code: str, message: str = "not now") -> NoReturn:
    raise ClientError({"Error": {"Code": code, "Message": message}}, operation)


def test_untagged_ami_is_tagged_then_removed(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    image, snapshot = an_image(ec2, an_instance(ec2, MINE), f"row-{MINE}", None)
    tagged: list[tuple[str, str, str]] = []

    def look(region: str, operation: str, given: Any, call: Call) -> Any:
        for name in ("ImageId", "SnapshotId"):
            if operation in ("DeregisterImage", "DeleteSnapshot") and name in given:
                of_it = [{"Name": "resource-id", "Values": [given[name]]}]
                tags = ec2.describe_tags(Filters=of_it)["Tags"]
                tagged.extend((tag["ResourceId"], tag["Key"], tag["Value"]) for tag in tags)
        return call()

    at_each_call(monkeypatch, look)
    done = cleanup.remove(MINE, AWS, amis=True)
    assert {f"AMI {image}", f"snapshot {snapshot}"} <= set(done.removed)
    assert there(ec2) & {image, snapshot} == set()
    assert {(image, "kiln:run-id", MINE), (snapshot, "kiln:run-id", MINE)} <= set(tagged)


def test_snapshot_without_ami_is_found_by_instance(ec2: Any) -> None:
    instance = an_instance(ec2, MINE)
    volume = ec2.create_volume(AvailabilityZone="eu-central-1a", Size=1)["VolumeId"]
    orphan, strangers = (
        ec2.create_snapshot(
            VolumeId=volume, Description=f"Created by CreateImage({of}) for ami-0123"
        )["SnapshotId"]
        for of in (instance, "i-0123456789abcdef0")
    )
    ec2.terminate_instances(InstanceIds=[instance])
    done = cleanup.remove(MINE, AWS, amis=True)
    assert f"snapshot {orphan}" in done.removed
    assert orphan not in there(ec2)
    assert strangers in there(ec2)


def test_refused_removal_stops_no_other(
    ec2: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make(MINE)
    kept = {kind: mine[kind] for kind in ("security group", "volume", "launch template")}

    def refuse(region: str, operation: str, given: Any, call: Call) -> Any:
        if operation in ("DeleteSecurityGroup", "DeleteVolume", "DeleteLaunchTemplate"):
            fail(operation, "UnauthorizedOperation", "not you")
        return call()

    at_each_call(monkeypatch, refuse)
    done = cleanup.remove(MINE, AWS, amis=True)
    assert set(done.removed) == words(mine) - words(kept)
    assert [failure.splitlines()[0] for failure in done.failures] == [
        "not removed: DeleteSecurityGroup answered UnauthorizedOperation: not you",
        "not removed: DeleteVolume answered UnauthorizedOperation: not you",
        "not removed: DeleteLaunchTemplate answered UnauthorizedOperation: not you",
    ]
    assert set(done.left) == words(kept)


def test_launched_instance_ends_without_a_listing(
    ec2: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make(MINE)

    def throttle(region: str, operation: str, given: Any, call: Call) -> Any:
        return (
            fail(operation, "RequestLimitExceeded") if operation == "DescribeInstances" else call()
        )

    with monkeypatch.context() as patch:
        at_each_call(patch, throttle)
        done = cleanup.remove(
            MINE, AWS, amis=True, launched=["i-0123456789abcdef0", mine["instance"]]
        )
    assert done.left == [
        f"instance {mine['instance']}: termination requested, not confirmed",
        "snapshots: EC2 does not say whether there are any",
    ]
    assert there(ec2) & set(mine.values()) == {mine["snapshot"]}
    assert f"AMI {mine['AMI']}" in done.removed


def test_launched_instance_ends_before_its_tag_shows(
    ec2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = an_instance(ec2, MINE)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    by_id: list[str] = []

    def seconds_after_a_launch(region: str, operation: str, given: Any, call: Call) -> Any:
        if operation == "DescribeInstances":
            if "Filters" in given:
                return {"Reservations": []}
            by_id.append(operation)
            if len(by_id) < 9:
                fail(operation, "InvalidInstanceID.NotFound", "not yet")
        return call()

    with monkeypatch.context() as patch:
        at_each_call(patch, seconds_after_a_launch)
        done = cleanup.remove(MINE, AWS, amis=True, launched=[instance])
    assert done == cleanup.Removal(removed=[f"instance {instance}"])
    assert instance not in there(ec2)


def refused_while_in_use(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """EC2 says so many times of each kind that it is in use."""
    codes = {
        "DeleteSnapshot": "InvalidSnapshot.InUse",
        "DeleteSecurityGroup": "DependencyViolation",
        "DeleteVolume": "VolumeInUse",
    }
    refused: list[str] = []

    def in_use(region: str, asked: str, given: Any, call: Call) -> Any:
        if asked in codes and refused.count(asked) < times:
            refused.append(asked)
            fail(asked, codes[asked])
        return call()

    at_each_call(monkeypatch, in_use)


def test_resource_in_use_for_a_moment_is_removed(
    ec2: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make(MINE)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    refused_while_in_use(monkeypatch, 2)
    done = cleanup.remove(MINE, AWS, amis=True)
    assert (done.failures, set(done.removed)) == ([], words(mine))
    removed = ["instance i-1", "instance i-2", "key pair kiln-1"]
    assert cleanup.Removal(removed).counts == "2 instances, 1 key pair"


def test_second_interrupt_skips_the_waits(
    ec2: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make(MINE)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waited"))
    refused_while_in_use(monkeypatch, 1000)
    done = cleanup.remove(MINE, AWS, amis=True, patient=False)
    assert f"security group {mine['security group']}" in done.left
    other = make(OTHERS)

    def keep_alive(region: str, operation: str, given: Any, call: Call) -> Any:
        return {} if operation == "TerminateInstances" else call()

    at_each_call(monkeypatch, keep_alive)
    done = cleanup.remove(OTHERS, AWS, amis=True, hurried=lambda: True)
    assert f"instance {other['instance']}: termination requested, not confirmed" in done.left


@pytest.mark.parametrize(
    ("code", "named"),
    [("Client.InternalError", True), ("Client.UserInitiatedShutdown", False), ("", False)],
)
def test_instance_ended_by_ec2_is_explained(
    ec2: Any, monkeypatch: pytest.MonkeyPatch, code: str, *, named: bool
) -> None:
    instance = an_instance(ec2, MINE)

    def ended(region: str, operation: str, given: Any, call: Call) -> Any:
        answer = call()
        for reservation in answer.get("Reservations", []):
            reason = {"Code": code, "Message": "no key"}
            reservation["Instances"][0] |= {
                "State": {"Name": "shutting-down"},
                "StateReason": reason,
            }
        return answer

    at_each_call(monkeypatch, ended)
    reasons = [f"{instance} went to shutting-down: no key"] if named else []
    assert cleanup.ended_by_ec2(AWS, MINE) == reasons


def test_unanswered_kinds_are_named(ec2: Any, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make(MINE)
    at_each_call(
        monkeypatch,
        lambda region, operation, given, call: fail(operation, "RequestLimitExceeded"),
    )
    done = cleanup.remove(MINE, AWS, amis=True)
    assert done.removed == []
    assert [line.split(":")[0] for line in done.left] == [
        "instances", "AMIs", "snapshots", "key pairs", "security groups", "volumes",
        "launch templates",
    ]  # fmt: skip


def test_instance_that_does_not_end_is_left(
    ec2: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make(MINE)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(cleanup, "_TERMINATE_TIMEOUT", -1)

    def keep_alive(region: str, operation: str, given: Any, call: Call) -> Any:
        return {} if operation == "TerminateInstances" else call()

    at_each_call(monkeypatch, keep_alive)
    done = cleanup.remove(MINE, AWS, amis=True)
    assert f"instance {mine['instance']}: termination requested, not confirmed" in done.left
    assert "Waiter InstanceTerminated failed" in done.failures[0]


def test_tagging_skips_vanished_resource(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has the run's tag may be removed, and EC2 tags all of a call or none."""
    image, snapshot = an_image(ec2, an_instance(ec2, MINE), f"row-{MINE}", None)
    tagged: list[str] = []

    def gone(region: str, operation: str, given: Any, call: Call) -> Any:
        if operation == "CreateTags" and image in given["Resources"]:
            fail(operation, "InvalidAMIID.NotFound", "gone")
        if operation == "CreateTags":
            tagged.extend(given["Resources"])
        return call()

    at_each_call(monkeypatch, gone)
    cleanup.remove(MINE, AWS, amis=True, patient=False)
    assert tagged == [snapshot]


def test_resource_removed_meanwhile_is_no_failure(
    ec2: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(MINE)

    def two_at_once(region: str, operation: str, given: Any, call: Call) -> Any:
        if operation.startswith(("Delete", "Deregister", "Terminate")):
            call()
        return call()

    at_each_call(monkeypatch, two_at_once)
    done = cleanup.remove(MINE, AWS, amis=True)
    assert done.failures == []


def test_invalid_run_id_removes_nothing(ec2: Any, make: Make) -> None:
    make(MINE)
    before = there(ec2)
    for forged in ("*", "20261121T*", "????????T??????Z-????", "", MINE + "\n", MINE.upper()):
        with pytest.raises(KilnError, match="is not a run id") as caught:
            cleanup.remove(forged, AWS, amis=True)
        assert caught.value.exit_status == 2
    assert there(ec2) == before


def test_wildcard_finds_no_resource(ec2: Any, make: Make) -> None:
    make(MINE)
    wild = [{"Name": "tag:kiln:run-id", "Values": ["*"]}]
    assert ec2.describe_images(Owners=["self"], Filters=wild)["Images"], "EC2 matches it"
    for pattern in ("*", MINE[:-4] + "*", "?" * len(MINE)):
        assert list(cleanup.live_instances(ec2, pattern)) == []
        for find in cleanup.resource_finders(True).values():
            assert find(ec2, pattern) == []
