"""A verified AMI on its way to those who launch it: published, promoted, rolled back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.vocabulary import read_time, utc_now
from kiln.cloud.images import find_parent
from kiln.consume import KINDS, launch_request, pinned
from kiln.matrix.model import Publish
from kiln.publish import channels, copies, publish
from kiln.publish.lines import channel_rows, history_rows
from kiln.publish.promote import roll_back
from kiln.publish.retire import Going, Retirement, plan_retirement, retire
from tests.unit.publish.channel import (
    AL2,
    AWS,
    HOME,
    LINE,
    OTHER,
    RECIPE,
    Bake,
    Client,
    a_line,
    back,
    described,
    promoted,
    published,
    resolved,
    verified_again,
    versions_of,
)
from tests.unit.publish.faults import at_each_call, faulty, refuses

pytestmark = pytest.mark.slow


def test_each_region_gets_a_tagged_copy(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_AWS_TAGS", "team=ml,cost-center=4711")
    theirs = {"team": "ml", "cost-center": "4711"}
    ami_id = bake(tags=theirs)
    published(OTHER, settings=Publish(copy_minutes=60))
    assert resolved(client, "nightly") == ami_id
    copy = described(client, resolved(client, "nightly", OTHER), OTHER)
    assert (copy["SourceImageId"], copy["SourceImageRegion"]) == (ami_id, HOME)
    tags = {tag["Key"]: tag["Value"] for tag in copy["Tags"]}
    assert tags["kiln:verified"].startswith("pass ")
    assert tags["kiln:line"] == LINE
    assert copy["ImdsSupport"] == "v2.0"
    assert copy["DeregistrationProtection"] == "enabled-without-cooldown"
    name = channels.image_parameter(LINE, "nightly")
    (parameter,) = client("ssm", OTHER).describe_parameters(
        ParameterFilters=[{"Key": "Name", "Values": [name]}]
    )["Parameters"]
    assert parameter["DataType"] == "aws:ec2:image"
    listed = client("ssm", OTHER).list_tags_for_resource(ResourceType="Parameter", ResourceId=name)
    disk = copy["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    (snapshot,) = client("ec2", OTHER).describe_snapshots(SnapshotIds=[disk])["Snapshots"]
    for tagged in (copy["Tags"], snapshot["Tags"], listed["TagList"]):
        assert {tag["Key"]: tag["Value"] for tag in tagged}.items() >= theirs.items()
    verdict = {"Key": "kiln:verified", "Value": "pass 2026-11-28T12:00:00Z c0ffee1"}
    client("ec2").create_tags(Resources=[ami_id], Tags=[verdict])
    published(OTHER)
    assert verdict in described(client, copy["ImageId"], OTHER)["Tags"]


def _open(client: Client, region: str, ami_id: str) -> list[set[str]]:
    """Who may launch an AMI, and who may read its snapshot."""
    ec2 = client("ec2", region)
    image = ec2.describe_image_attribute(ImageId=ami_id, Attribute="launchPermission")
    disk = described(client, ami_id, region)["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    snapshot = ec2.describe_snapshot_attribute(SnapshotId=disk, Attribute="createVolumePermission")
    each = (image["LaunchPermissions"], snapshot["CreateVolumePermissions"])
    return [{next(iter(one.values())) for one in permissions} for permissions in each]


def test_sharing_removed_account_is_revoked(client: Client, bake: Bake) -> None:
    stays, goes = "111122223333", "444455556666"
    organization = "arn:aws:organizations::123456789012:organization/o-1234567890"
    before = {"share": {"accounts": [stays, goes], "organizations": [organization]}}
    after = Publish.model_validate({"share": {"accounts": [stays]}})
    bake(3)
    published(OTHER, settings=Publish.model_validate(before))
    old = {region: resolved(client, "nightly", region) for region in (HOME, OTHER)}
    for region, ami_id in old.items():
        assert _open(client, region, ami_id) == [{stays, goes, organization}, {stays, goes}]
    opened = plan_retirement(AWS, [OTHER], {LINE: after}).opened
    assert len(opened) == 2 * 3
    assert f"{OTHER}: account {goes} may launch {old[OTHER]}" in opened
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if goes in text and old[HOME] in text:
            assert goes in _open(client, HOME, old[HOME])[0], "said after it was done"

    bake(4)
    published(OTHER, settings=after, say=say)
    for region in (HOME, OTHER):
        for ami_id in (old[region], resolved(client, "nightly", region)):
            assert _open(client, region, ami_id) == [{stays}, {stays}]
        assert f"{region}: account {goes} may launch {old[region]}" in "\n".join(said)
    assert stays not in "\n".join(said)
    assert plan_retirement(AWS, [OTHER], {LINE: after}).opened == ()


def _encrypted(client: Client, key: str | None) -> str:
    """An instance whose volume that key encrypts; without one the account's default key."""
    ec2 = client("ec2")
    parent = client("ssm").get_parameter(Name=AL2)["Parameter"]["Value"]
    disk = {"Encrypted": True, **({"KmsKeyId": key} if key else {})}
    launched = ec2.run_instances(
        ImageId=parent,
        InstanceType="t3.micro",
        MinCount=1,
        MaxCount=1,
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": disk}],
    )
    made = str(launched["Instances"][0]["InstanceId"])
    ec2.get_waiter("instance_running").wait(InstanceIds=[made], WaiterConfig={"Delay": 1})
    return made


def _key(client: Client, region: str = HOME) -> str:
    return str(client("kms", region).create_key()["KeyMetadata"]["Arn"])


SHARED: dict[str, Any] = {"accounts": ["111122223333"]}


@pytest.mark.parametrize("own_at_home", [False, True])
def test_sharing_awss_own_key_copies_nothing(
    client: Client, bake: Bake, *, own_at_home: bool
) -> None:
    ami_id = bake(3, of=_encrypted(client, _key(client) if own_at_home else None))
    where = OTHER if own_at_home else f"{HOME}, {OTHER}"
    with pytest.raises(KilnError, match=rf"cannot be shared in {where}: AWS's own key"):
        published(OTHER, settings=Publish.model_validate({"share": SHARED}))
    assert _copies(client, ami_id) == []
    assert channels.held(AWS, LINE, "nightly") is None
    if own_at_home:
        alias = {"AliasName": "alias/images", "TargetKeyId": _key(client, OTHER)}
        client("kms", OTHER).create_alias(**alias)
        keys = {OTHER: "alias/images"}
        published(OTHER, settings=Publish.model_validate({"share": SHARED, "kms_keys": keys}))


def _copies(client: Client, ami_id: str) -> list[str]:
    copied = [{"Name": "tag:kiln:source-image", "Values": [ami_id]}]
    found = client("ec2", OTHER).describe_images(Owners=["self"], Filters=copied)["Images"]
    return [image["ImageId"] for image in found]


def test_publishes_before_ec2_lists_the_copy_share_one(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ami_id = bake(3)
    monkeypatch.setattr(copies, "list_images", lambda target, **query: iter(()))
    for _ in range(2):
        published(OTHER)
    assert len(_copies(client, ami_id)) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tags": {"kiln:verified": "fail 2026-11-05T00:00:00Z c0ffee0"}}, "kiln:verified is fail"),
        ({"tags": {"kiln:verified": ""}}, "kiln:verified is missing"),
        ({"tags": {"kiln:recipe-digest": "e" * 64}}, "its record: dddd"),
        ({"status": "failed"}, "ended as failed"),
    ],
)
def test_unverified_ami_is_refused(
    client: Client, bake: Bake, changed: dict[str, Any], message: str
) -> None:
    ami_id = bake(5, **changed)
    with pytest.raises(KilnError, match=message) as refused:
        published(OTHER)
    assert (refused.value.exit_status, ami_id in str(refused.value)) == (1, True)
    assert channels.held(AWS, LINE, "nightly") is None


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        ("ModifyImageAttribute", "not as `share` declares"),
        ("EnableImageDeregistrationProtection", "not protected from deregistration"),
    ],
)
def test_setting_without_effect_moves_no_channel(
    bake: Bake, monkeypatch: pytest.MonkeyPatch, ignored: str, message: str
) -> None:
    bake(3)

    def act(region: str, operation: str, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        return {} if operation == ignored else call()

    at_each_call(monkeypatch, act)
    with pytest.raises(KilnError, match=message):
        published(settings=Publish.model_validate({"share": SHARED}))
    assert channels.held(AWS, LINE, "nightly") is None


def test_late_answers_of_aws_are_waited_for(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 shows a copy, and SSM the parameter of an image, some looks after they were made."""
    ami_id, late = bake(6), Counter[str]()
    kept: list[Callable[[], Any]] = []

    def act(region: str, operation: str, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        if operation == "PutParameter" and given.get("DataType") == "aws:ec2:image":
            kept.append(call)
            return {"Version": 1}
        if operation == "GetParameters" and kept:
            late[operation] += 1
            if late[operation] > 3:
                while kept:
                    kept.pop()()
        answer = call()
        if (operation, region, "ImageIds" in given) == ("DescribeImages", OTHER, True):
            late[operation] += 1
            if late[operation] <= 3:
                answer["Images"].clear()
        return answer

    with monkeypatch.context() as patch:
        at_each_call(patch, act)
        published(OTHER)
    assert min(late.values()) > 3
    assert resolved(client, "nightly") == ami_id
    assert described(client, resolved(client, "nightly", OTHER), OTHER)


def test_deregistered_copy_is_made_again(client: Client, bake: Bake) -> None:
    bake(6)
    published(OTHER)
    gone = resolved(client, "nightly", OTHER)
    ec2 = client("ec2", OTHER)
    ec2.disable_image_deregistration_protection(ImageId=gone)
    ec2.deregister_image(ImageId=gone)
    published(OTHER)
    assert described(client, resolved(client, "nightly", OTHER), OTHER)["State"] == "available"


def test_reverified_old_ami_is_not_the_newest(
    client: Client, bake: Bake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = bake(1), bake(2)
    verified_again(old, tmp_path)
    # EC2 dates images to the second.
    real = publish.own_images
    day = timedelta(days=1)
    monkeypatch.setattr(
        publish,
        "own_images",
        lambda target: [
            replace(image, created=image.created - day * (image.ami_id == old))
            for image in real(target)
        ],
    )
    published()
    assert resolved(client, "nightly") == new
    published(ami_id=old)
    assert resolved(client, "nightly") == old


@pytest.mark.parametrize("days", [None, 60])
def test_retiring_ami_is_published_again(client: Client, bake: Bake, days: int | None) -> None:
    ami_id = bake(6)
    planned = plan_retirement(AWS, [], {})
    assert ami_id not in {image.ami_id for image in planned.would}
    retire(AWS, Retirement((Going(ami_id, HOME, "deprecate", ""),), ()))
    assert "kiln:retiring" in {tag["Key"] for tag in described(client, ami_id)["Tags"]}
    published(OTHER, settings=Publish(deprecate_after=days))
    for region in (HOME, OTHER):
        image = described(client, resolved(client, "nightly", region), region)
        assert "kiln:retiring" not in {tag["Key"] for tag in image["Tags"]}
        until = image.get("DeprecationTime")
        assert bool(until) == bool(days)
        assert not until or read_time(until) > utc_now() + timedelta(days=59)


def test_failed_smoke_test_moves_no_channel(bake: Bake) -> None:
    ami_id = bake(6)
    tried: dict[str, str] = {}

    def smoke(target: Any, image_id: str) -> None:
        tried[target.region] = image_id
        if target.region == OTHER:
            raise KilnError(f"{image_id} does not boot", exit_status=1)

    with pytest.raises(KilnError, match="does not boot"):
        published(OTHER, smoke=smoke)
    assert tried[HOME] == ami_id
    assert set(tried) == {HOME, OTHER}
    assert channels.held(AWS, LINE, "nightly") is None


def test_interrupted_move_is_not_promoted(client: Client, bake: Bake) -> None:
    bake(11)
    published(OTHER)
    old = resolved(client, "nightly", OTHER)
    bake(12)
    down = faulty(refuses("PutParameter", "AccessDeniedException", OTHER))
    with down, pytest.raises(KilnError, match=f"moved to .*: {HOME}; not: {OTHER}") as failed:
        published(OTHER)
    assert failed.value.hint.endswith("docs/iam-policy.json; run it again to go on")
    assert resolved(client, "nightly", OTHER) == old
    with pytest.raises(KilnError, match=f"was interrupted: it does not hold .* in {OTHER}"):
        promoted("candidate")
    published(OTHER)
    assert promoted("candidate").allowed


def test_closed_gate_keeps_the_channel(client: Client, bake: Bake) -> None:
    ami_id = bake(12)
    published()
    for to, words in (("stable", "candidate of .* holds nothing"), ("nightly", "first channel")):
        with pytest.raises(KilnError, match=words) as refused:
            promoted(to)
        assert refused.value.exit_status == 2

    def closed(settings: Publish | None = None) -> list[tuple[str, str]]:
        gates = promoted("candidate", settings, accept=True).gates
        return [(gate.name, gate.evidence) for gate in gates if not gate.open]

    soak = ("soak", "0.0 h of 24 h in the channel before")
    assert closed(Publish(soak_hours={"candidate": 24})) == [soak]
    verdict = [{"Key": "kiln:verified", "Value": "fail 2026-11-28T12:00:00Z c0ffee1"}]
    client("ec2").create_tags(Resources=[ami_id], Tags=verdict)
    assert [name for name, _ in closed()] == ["verified"]
    assert channels.held(AWS, LINE, "candidate") is None


def test_grave_difference_needs_accept(client: Client, bake: Bake) -> None:
    old = bake(13)
    published()
    promoted("candidate")
    new = bake(14, versions=versions_of("580.178.04"))
    published()
    shown = promoted("candidate", dry_run=True, accept=True)
    assert [gate.name for gate in shown.gates] == ["launches", "verified", "soak", "difference"]
    stayed = promoted("candidate")
    (closed,) = (gate for gate in stayed.gates if not gate.open)
    assert (closed.name, closed.evidence) == ("difference", "driver 510.47.03 → 580.178.04")
    assert resolved(client, "candidate") == old
    assert promoted("candidate", accept=True).allowed
    assert resolved(client, "candidate") == new
    bake(15, versions=versions_of("580.200.01"))
    published()
    assert promoted("candidate").allowed, "an update of the branch is not grave"


def test_promotion_lifts_deprecation(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ami_id = bake(18)
    published()
    tomorrow = utc_now() + timedelta(days=1)
    client("ec2").enable_image_deprecation(ImageId=ami_id, DeprecateAt=tomorrow)
    monkeypatch.setattr("kiln.cloud.images.utc_now", lambda: tomorrow + timedelta(hours=1))
    promoted("candidate", dry_run=True)
    assert "DeprecationTime" in described(client, ami_id)
    promoted("candidate")
    assert "DeprecationTime" not in described(client, ami_id)


def test_rollbacks_go_back_to_what_launches(client: Client, bake: Bake) -> None:
    first, second = bake(20), bake(21)
    with pytest.raises(KilnError, match="nothing to roll back"):
        back("nightly")
    for ami_id in (first, second, bake(22)):
        published(ami_id=ami_id)
    assert (back("nightly"), back("nightly")) == (second, first)
    with pytest.raises(KilnError, match="held nothing before"):
        back("nightly")
    published(ami_id=second)
    assert back("nightly", to=first) == first
    with pytest.raises(KilnError, match="never held ami-0ffff0000") as refused:
        back("nightly", to="ami-0ffff0000")
    assert second in refused.value.hint
    published(ami_id=second)
    ec2 = client("ec2")
    ec2.disable_image_deregistration_protection(ImageId=first)
    ec2.deregister_image(ImageId=first)
    with pytest.raises(KilnError, match="no longer launches"):
        back("nightly")
    assert resolved(client, "nightly") == second


def test_interrupted_rollback_is_continued(client: Client, bake: Bake) -> None:
    for day in (20, 21, 22):
        bake(day)
        published(OTHER)
    (_, wanted, *_) = (row["ami_id"] for row in history_rows(AWS, LINE, ["nightly"]))
    down = faulty(refuses("PutParameter", "InternalServerError", OTHER))
    with down, pytest.raises(KilnError, match=f"moved to .*: {HOME}; not: {OTHER}"):
        back("nightly")
    said: list[str] = []
    assert back("nightly", say=said.append) == wanted
    assert said[0].startswith("continues the interrupted rollback to ")
    copy = described(client, resolved(client, "nightly", OTHER), OTHER)
    assert copy["SourceImageId"] == wanted


def test_launch_template_follows_its_channel(client: Client, bake: Bake) -> None:
    ec2, name = client("ec2"), "training"
    ec2.create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"InstanceType": "p4d.24xlarge"}
    )
    template = {"name": name, "channel": "nightly", "regions": [HOME]}
    settings = Publish.model_validate({"launch_templates": [template]})

    def default() -> Any:
        (version,) = ec2.describe_launch_template_versions(
            LaunchTemplateName=name, Versions=["$Default"]
        )["LaunchTemplateVersions"]
        return version

    old = bake(26)
    published(settings=settings)
    assert default()["LaunchTemplateData"] == {"ImageId": old, "InstanceType": "p4d.24xlarge"}
    number = default()["VersionNumber"]
    new = bake(27)
    published(settings=settings)
    assert default()["LaunchTemplateData"]["ImageId"] == new
    back("nightly", settings)
    assert default()["VersionNumber"] == number


def test_channels_show_verdict_and_drift(bake: Bake) -> None:
    bake(28)
    published(OTHER, why="weekly bake")
    promoted("candidate", why="good")
    moves = history_rows(AWS, LINE, ["nightly", "candidate", "stable"])
    assert {(move["channel"], move["action"], move["why"]) for move in moves} == {
        ("nightly", "publish", "weekly bake"),
        ("candidate", "promote", "good"),
    }
    assert all(str(move["by"]).startswith("arn:aws:") for move in moves)
    bake(29)
    published()
    turned = Publish(channels=("candidate", "nightly"))
    listed = channel_rows(AWS, [OTHER], {LINE: turned})
    # In the order in which the settings declare them.
    assert [(row.channel, row.region) for row in listed] == [
        (channel, region) for channel in turned.channels for region in (HOME, OTHER)
    ]
    rows = {row.region: row for row in listed if row.channel == "nightly"}
    assert (rows[HOME].verified, rows[HOME].driver, rows[HOME].drift) == (True, "510.47.03", "")
    assert rows[OTHER].drift.startswith(f"{HOME} holds {RECIPE.name}-20261129")
    # Candidate's release was published there as well.
    assert {row.region for row in channel_rows(AWS, [], {})} == {HOME, OTHER}
    assert {row.region for row in channel_rows(AWS, [], {}, only=True)} == {HOME}


def test_rollback_names_skipped_regions(client: Client, bake: Bake) -> None:
    first = bake(1)
    published(ami_id=first)
    published(OTHER, ami_id=bake(2))
    there = resolved(client, "nightly", OTHER)
    messages: list[str] = []
    rolled = roll_back(a_line(), "nightly", AWS, say=messages.append)
    assert resolved(client, "nightly") == first
    assert rolled.kept == {OTHER: there}
    assert messages[-1].startswith(f"{OTHER}: nightly of {LINE} keeps {there}: ")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("al2023-ami-2023.5.*-kernel-6.1-x86_64", "al2023-ami-2023.5.20240916.0-kernel-6.1-x86_64"),
        ("al2023-ami-2023.*-kernel-6.1-x86_64", "al2023-ami-2023.12."),
    ],
)
def test_deprecated_parent_is_the_last_choice(name: str, found: str) -> None:
    source = RECIPE.source_ami.changed(owner="amazon", name=name, ssm_parameter=None)
    recipe = RECIPE.changed(source_ami=source, arch="x86_64")
    assert find_parent(recipe, AWS).name.startswith(found)


def launched(client: Callable[..., Any], name: str) -> Any:
    ec2 = client("ec2")
    template = {"LaunchTemplateName": name}
    made = ec2.run_instances(LaunchTemplate=template, MinCount=1, MaxCount=1)["Instances"][0]
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    return made


def test_a_launch_template_launches_what_the_channel_holds_now(
    client: Callable[..., Any], bake: Bake
) -> None:
    first, second = bake(1), bake(2)
    asked, kind = launch_request(LINE, "nightly", HOME), KINDS["launch-template-json"]
    with pytest.raises(KilnError, match=f"nightly of {LINE} holds nothing in {HOME}") as refused:
        pinned(AWS, asked)
    assert refused.value.exit_status == 1
    published(HOME, ami_id=first)
    now = json.loads(kind.document(pinned(AWS, asked)))
    assert now["LaunchTemplateData"]["ImageId"] == first
    template = json.loads(kind.document(asked))
    vpc = client("ec2").describe_security_groups()["SecurityGroups"][0]["GroupId"]
    template["LaunchTemplateData"]["SecurityGroupIds"] = [vpc]
    client("ec2").create_launch_template(**template)
    name = template["LaunchTemplateName"]
    assert launched(client, name)["ImageId"] == first
    published(HOME, ami_id=second)
    instance = launched(client, name)
    assert instance["ImageId"] == second
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert {"Key": "kiln:line", "Value": LINE} in instance["Tags"]
    back("nightly")
    assert launched(client, name)["ImageId"] == first
