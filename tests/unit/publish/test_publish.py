"""A verified AMI on its way to those who launch it: published, promoted, rolled back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from kiln.base.errors import KilnError
from kiln.base.vocabulary import read_time, utc_now
from kiln.cloud.images import find_parent
from kiln.matrix.model import Publish
from kiln.publish import channels, copies, lines, publish
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
from tests.unit.publish.faults import faulty, refuses


def test_each_region_gets_a_copy(client: Client, bake: Bake) -> None:
    ami_id = bake()
    published(OTHER, settings=Publish(copy_minutes=60))
    assert resolved(client, "nightly") == ami_id
    copy = described(client, resolved(client, "nightly", OTHER), OTHER)
    assert (copy["SourceImageId"], copy["SourceImageRegion"]) == (ami_id, HOME)
    tags = {tag["Key"]: tag["Value"] for tag in copy["Tags"]}
    assert tags["kiln:verified"].startswith("pass ")
    assert tags["kiln:line"] == LINE
    assert copy["ImdsSupport"] == "v2.0"
    assert copy["DeregistrationProtection"] == "enabled-without-cooldown"
    (parameter,) = client("ssm", OTHER).describe_parameters(
        ParameterFilters=[{"Key": "Name", "Values": [f"/ami-kiln/{LINE}/nightly/image_id"]}]
    )["Parameters"]
    assert parameter["DataType"] == "aws:ec2:image"


def test_copies_and_parameters_carry_own_tags(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_AWS_TAGS", "team=ml,cost-center=4711")
    bake(4, tags={"team": "ml", "cost-center": "4711"})
    published(OTHER)
    theirs = {"team": "ml", "cost-center": "4711"}
    for region in (HOME, OTHER):
        ssm = client("ssm", region)
        for part in ("image_id", "release"):
            name = f"/ami-kiln/{LINE}/nightly/{part}"
            found = ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=name)
            assert {tag["Key"]: tag["Value"] for tag in found["TagList"]} == theirs, (region, part)
    copy = described(client, resolved(client, "nightly", OTHER), OTHER)
    (disk,) = copy["BlockDeviceMappings"]
    wanted = [disk["Ebs"]["SnapshotId"]]
    (snapshot,) = client("ec2", OTHER).describe_snapshots(SnapshotIds=wanted)["Snapshots"]
    for resource in (copy, snapshot):
        tags = {tag["Key"]: tag["Value"] for tag in resource["Tags"]}
        assert tags.items() >= theirs.items()
    bake(5)
    published(OTHER)  # they exist now


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


def test_sharing_is_revoked_in_former_regions(client: Client, bake: Bake) -> None:
    bake(3)
    published(OTHER, settings=Publish.model_validate({"share": SHARED}))
    published(settings=Publish())
    for region in (HOME, OTHER):
        assert _open(client, region, resolved(client, "nightly", region)) == [set(), set()]


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


SHARED = {"accounts": ["111122223333"]}


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
        keys = {OTHER: _key(client, OTHER)}
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


def test_copy_with_a_missing_key_fails(client: Client, bake: Bake) -> None:
    bake(3)
    for key in (_key(client), "alias/none", "8bed7f79-0156-4762-84cc-9d58e519cbf4"):
        settings = Publish.model_validate({"kms_keys": {OTHER: key}})
        with pytest.raises(
            KilnError, match=r"is failed: The KMS key .* does not exist in eu-west-1"
        ):
            published(OTHER, settings=settings)


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


def test_ami_without_a_record_is_refused(bake: Bake) -> None:
    with pytest.raises(KilnError, match="no record of a verification") as refused:
        published(ami_id="ami-0123456789abcdef0")
    assert "./invoke verify --ami ami-0123456789abcdef0" in str(refused.value)


def _shown(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """EC2 describes an image of the other region, asked for by its id, as `change` leaves it."""
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def call(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        answer = real(self, operation, parameters)
        asked = (operation, self.meta.region_name, "ImageIds" in parameters)
        if asked == ("DescribeImages", OTHER, True):
            change(answer["Images"])
        return answer

    monkeypatch.setattr(BaseClient, "_make_api_call", call)


@pytest.mark.parametrize("looks", [3, 1000])
def test_copy_that_ec2_shows_late_is_waited_for(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    bake(6)
    late: list[Any] = []

    def unseen(images: list[Any]) -> None:
        if len(late) < looks:
            late.append(images.pop())

    _shown(monkeypatch, unseen)
    if looks == 1000:
        with pytest.raises(KilnError, match="is already in use by AMI"):
            published(OTHER)
        return
    published(OTHER)
    assert described(client, resolved(client, "nightly", OTHER), OTHER)


def test_deregistered_copy_is_made_again(client: Client, bake: Bake) -> None:
    bake(6)
    published(OTHER)
    for _ in range(2):
        gone = resolved(client, "nightly", OTHER)
        ec2 = client("ec2", OTHER)
        ec2.disable_image_deregistration_protection(ImageId=gone)
        ec2.deregister_image(ImageId=gone)
        published(OTHER)
        assert described(client, resolved(client, "nightly", OTHER), OTHER)["State"] == "available"


def test_stale_description_is_read_again(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ami_id = bake(6)
    real, stale = copies.find_image, list[str]()

    def late(target: Any, image_id: str) -> Any:
        image = real(target, image_id)
        if len(stale) < 3:
            stale.append(image_id)
            return replace(image, imds_v2=False, tags={})
        return image

    monkeypatch.setattr(copies, "find_image", late)
    published()
    assert stale == [ami_id] * 3
    assert resolved(client, "nightly") == ami_id


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


def _put_late(monkeypatch: pytest.MonkeyPatch, looks: int) -> list[str]:
    """SSM shows the parameters of images after so many looks; what it has not shown yet."""
    kept: list[dict[str, Any]] = []
    looked: list[str] = []
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def call(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        if operation == "PutParameter" and parameters.get("DataType") == "aws:ec2:image":
            kept.append(parameters)
            return {"Version": 1}
        if operation == "GetParameters" and kept:
            looked.append(str(kept[0]["Value"]))
            if len(looked) > looks:
                real(self, "PutParameter", kept.pop())
        return real(self, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    return looked


def test_move_waits_until_ssm_shows_it(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ami_id = bake(7)
    looked = _put_late(monkeypatch, looks=3)
    published()
    assert looked == [ami_id] * 4
    assert resolved(client, "nightly") == ami_id


def test_move_that_ssm_never_shows_fails(bake: Bake, monkeypatch: pytest.MonkeyPatch) -> None:
    ami_id = bake(7)
    _put_late(monkeypatch, looks=1000)
    with pytest.raises(KilnError, match=f"SSM has taken {ami_id} for .*the channel holds nothing"):
        published()


def test_later_tags_reach_the_copy(client: Client, bake: Bake) -> None:
    ami_id = bake(8)
    published(OTHER)
    verdict = {"Key": "kiln:verified", "Value": "pass 2026-11-28T12:00:00Z c0ffee1"}
    client("ec2").create_tags(Resources=[ami_id], Tags=[verdict])
    published(OTHER)
    copy = described(client, resolved(client, "nightly", OTHER), OTHER)
    assert verdict in copy["Tags"]


def test_promotion_skips_no_channel(bake: Bake) -> None:
    bake(11)
    published()
    with pytest.raises(KilnError, match=r"candidate of .* holds nothing in us-east-1") as refused:
        promoted("stable")
    assert refused.value.exit_status == 2
    assert f"./invoke promote --line {LINE} --to candidate" in str(refused.value)


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


def test_unsoaked_release_stays(client: Client, bake: Bake) -> None:
    bake(12)
    published()
    stayed = promoted("candidate", Publish(soak_hours={"candidate": 24}), accept=True)
    (closed,) = (gate for gate in stayed.gates if not gate.open)
    assert (closed.name, closed.evidence) == ("soak", "0.0 h of 24 h in the channel before")
    assert channels.held(AWS, LINE, "candidate") is None


def test_ami_that_is_verified_no_more_is_not_promoted(client: Client, bake: Bake) -> None:
    ami_id = bake(12)
    published()
    verdict = [{"Key": "kiln:verified", "Value": "fail 2026-11-28T12:00:00Z c0ffee1"}]
    client("ec2").create_tags(Resources=[ami_id], Tags=verdict)
    stayed = promoted("candidate", accept=True)
    assert [gate.name for gate in stayed.gates if not gate.open] == ["verified"]
    assert channels.held(AWS, LINE, "candidate") is None


def test_grave_difference_needs_accept(client: Client, bake: Bake) -> None:
    old = bake(13)
    published()
    promoted("candidate")
    new = bake(14, versions=versions_of("580.178.04"))
    published()
    stayed = promoted("candidate")
    (closed,) = (gate for gate in stayed.gates if not gate.open)
    assert (closed.name, closed.evidence) == ("difference", "driver 510.47.03 → 580.178.04")
    assert resolved(client, "candidate") == old
    assert promoted("candidate", accept=True).allowed
    assert resolved(client, "candidate") == new


def test_dry_run_moves_nothing(bake: Bake) -> None:
    bake(15)
    published()
    shown = promoted("candidate", dry_run=True)
    assert [gate.name for gate in shown.gates] == ["launches", "verified", "soak", "difference"]
    assert channels.held(AWS, LINE, "candidate") is None


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


def test_two_rollbacks_go_back_two_releases(client: Client, bake: Bake) -> None:
    first, second = bake(20), bake(21)
    published(ami_id=first)
    published(ami_id=second)
    published(ami_id=bake(22))
    assert (back("nightly"), back("nightly")) == (second, first)
    with pytest.raises(KilnError, match="held nothing before"):
        back("nightly")


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


def test_rollback_to_a_missing_image_moves_nothing(client: Client, bake: Bake) -> None:
    old = bake(23)
    published()
    new = bake(24)
    published()
    ec2 = client("ec2")
    ec2.disable_image_deregistration_protection(ImageId=old)
    ec2.deregister_image(ImageId=old)
    with pytest.raises(KilnError, match="no longer launches"):
        back("nightly")
    assert resolved(client, "nightly") == new


def test_rollback_passes_a_damaged_release(client: Client, bake: Bake) -> None:
    old = bake(23)
    published()
    ssm, name = client("ssm"), channels.release_parameter(LINE, "nightly")
    good = ssm.get_parameter(Name=name)["Parameter"]["Value"]
    ssm.put_parameter(Name=name, Value="{", Overwrite=True)
    with pytest.raises(KilnError, match="not a release"):
        list(channels.past(AWS, LINE, "nightly"))
    ssm.put_parameter(Name=name, Value=good, Overwrite=True)
    bake(24)
    published()
    assert back("nightly") == old
    assert [row["ami_id"] for row in history_rows(AWS, LINE, ["nightly"])].count(old) == 3


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
    published(OTHER)
    promoted("candidate")
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


def test_history_says_who_moved_what_and_why(client: Client, bake: Bake) -> None:
    ami_id = bake(30)
    published(why="weekly bake")
    promoted("candidate", why="good")
    rows = history_rows(AWS, LINE, ["nightly", "candidate", "stable"])
    moves = {(row["channel"], row["action"], row["ami_id"], row["why"]) for row in rows}
    assert moves == {
        ("nightly", "publish", ami_id, "weekly bake"),
        ("candidate", "promote", ami_id, "good"),
    }
    assert all(str(row["by"]).startswith("arn:aws:") for row in rows)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda: lines.load_line("al2/clasic/base/x86_64"), f"did you mean '{LINE}'"),
        (lambda: lines.regions_to_show("us-eest-1"), "AWS has no region"),
        (lambda: lines.regions_to_show("mars"), "is not a region"),
        (lambda: lines.regions_to_show(","), "names no region"),
        (
            lambda: lines.with_regions(Publish(regions=("eu-west-11",)), None),
            "`publish.regions` of the row: eu-west-11",
        ),
    ],
)
def test_unknown_line_or_region_is_refused(asked: Callable[[], Any], message: str) -> None:
    with pytest.raises(KilnError) as refused:
        asked()
    assert (refused.value.exit_status, message in str(refused.value)) == (2, True), refused.value


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


def test_promotion_names_skipped_regions(client: Client, bake: Bake) -> None:
    published(OTHER, ami_id=bake(1))
    promoted("candidate")
    there = resolved(client, "candidate", OTHER)
    published(ami_id=bake(2))
    messages: list[str] = []
    soaking = Publish(soak_hours={"candidate": 100})
    assert not promoted("candidate", soaking, say=messages.append).allowed
    assert messages == []
    promoted("candidate", say=messages.append)
    assert messages[0].startswith(f"{OTHER}: candidate of {LINE} keeps {there}: ")


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
