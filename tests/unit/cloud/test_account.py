"""`aws:` in amis.yaml, its flags and its environment: what wins, what is refused, what EC2 gets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from kiln.base.account import SETTINGS, Account, SubnetFilter, variables
from kiln.base.errors import KilnError
from kiln.cli.options import BuildSettings
from kiln.cli.task import Doc
from kiln.cloud import instance, network, session
from kiln.cloud.network import Access, Network, make_access
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.matrix import load
from kiln.matrix.flags import overridden
from kiln.packer import render

MATRIX = """\
defaults:
  instance_type: {{x86_64: g4dn.xlarge}}
  aws: {}
stacks:
  lts: {{driver: 580.178.04, kernel_module: open}}
amis:
- distro: al2023
  stack: lts
  aws: {}
"""
AWS = Target("a test", "eu-central-1", account="123456789012")
HELPS = Doc(BuildSettings).helps


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        for variable in variables(name):
            monkeypatch.delenv(variable, raising=False)


def matrix(folder: Path, defaults: dict[str, Any] | None, row: dict[str, Any] | None) -> Path:
    """A matrix of one row; `aws` of the defaults is line 3, that of the row line 9."""
    path = folder / "amis.yaml"
    path.write_text(MATRIX.format(json.dumps(defaults or {}), json.dumps(row or {})))
    return path


def account(folder: Path, defaults: Any = None, row: Any = None, **typed: str) -> Account:
    (recipe,) = load.load_recipes(matrix(folder, defaults, row))
    return overridden(recipe.row.account, typed, recipe.arch)


def test_flag_beats_environment_beats_row_beats_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"kms_key_id": "alias/a", "iam_instance_profile": "a", "region": "eu-west-1"}
    row = {"kms_key_id": "alias/b", "iam_instance_profile": "b"}
    monkeypatch.setenv("KILN_AWS_KMS_KEY_ID", "alias/c")
    monkeypatch.setenv("KILN_AWS_IAM_INSTANCE_PROFILE", "c")
    got = account(tmp_path, defaults, row, kms_key_id="alias/d")
    assert got.shown() == [
        "region eu-west-1 (amis.yaml:3:73)",
        "iam_instance_profile c (KILN_AWS_IAM_INSTANCE_PROFILE)",
        "kms_key_id alias/d (--kms-key-id)",
    ]


def test_layers_add_up_with_their_places(tmp_path: Path) -> None:
    got = account(
        tmp_path,
        {"tags": {"team": "ml", "cost": "1"}, "mirrors": {"https://a.example": "https://m/a"}},
        {"tags": {"cost": "2"}},
        tags="env=prod",
    )
    assert dict(got.tags) == {"team": "ml", "cost": "2", "env": "prod"}
    assert got.shown()[0] == (
        "tags team=ml (amis.yaml:3:26), cost=2 (amis.yaml:9:26), env=prod (--tags)"
    )
    assert got.mirrors == {"https://a.example": "https://m/a"}


def test_closest_time_limit_counts_and_null_unsets(tmp_path: Path) -> None:
    assert render.time_limit(Account(), "cuda") == 2 * 3600
    defaults = {
        "time_limits": {"all": "90m", "nvidia-driver": "3h"},
        "proxy": "http://p:3128",
        "subnet_ids": ["subnet-01234567"],
    }
    row = {"time_limits": {"kernel": "45s"}, "proxy": None, "subnet_ids": []}
    got = account(tmp_path, defaults, row, time_limits="efa=1h")
    names = ("all", "nvidia-driver", "kernel", "efa", "tuning")
    assert [render.time_limit(got, name) for name in names] == [5400, 10800, 45, 3600, 5400]
    assert (got.proxy, got.subnet_ids) == (None, ())
    assert "proxy none (amis.yaml:9:" in " ".join(got.shown())


def test_subnet_replaces_a_filter_farther_away(tmp_path: Path) -> None:
    choice = {"filters": {"tag:Class": "build"}, "most_free": True}
    got = account(tmp_path, {"subnet_filter": choice}, {"subnet_id": "subnet-01234567"})
    assert (got.subnet_id, got.subnet_filter) == ("subnet-01234567", None)
    back = account(
        tmp_path, {"subnet_id": "subnet-01234567"}, None, subnet_filter="tag:Class=build"
    )
    assert (back.subnet_id, back.subnet_filter) == (
        None,
        SubnetFilter(filters={"tag:Class": "build"}),
    )


A, B, M = "https://a.example", "https://b.example", "https://m"
KEY = "arn:aws:kms:us-east-1:123456789012:alias/ami"
# A block that is wrong, and a part of the answer.
WRONG = [
    ({"subnet": "subnet-01234567"}, "did you mean 'subnet_id'"),
    ({"subnet_filter": {"filters": {"vpc-id": "a"}, "mostfree": True}}, "mean 'most_free'?"),
    ({"ssh_source_cidrs": ["10.0.0.1"]}, "no prefix length"),
    ({"ssh_source_cidrs": ["0.0.0.0/0"]}, "the whole internet"),
    ({"instance_types": {"x86_64": ["g5.xlarge"] * 2}}, "twice"),
    ({"tags": {"aws:x": "1"}}, "is reserved"),
    ({"tags": {"cost": 42}}, "quotes"),
    ({"time_limits": {"cudda": "3h"}}, "did you mean 'cuda'?"),
    ({"mirrors": {A: "http://m"}}, "no TLS"),
    ({"mirrors": {A: M, B: f"{M}/b"}}, "below another"),
    ({"region": "eu-west-1", "kms_key_id": KEY}, "the key is in us-east-1"),
    ({"subnet_id": "subnet-01234567", "subnet_filter": {"filters": {"vpc-id": "v"}}}, "either"),
    ({"spot": True, "capacity_reservation_id": "cr-01234567"}, "reservation"),
    ({"security_group_ids": ["sg-01234567"], "ssh_source_cidrs": ["10.0.0.0/8"]}, "adds no rule"),
]


@pytest.mark.parametrize(("block", "words"), WRONG)
def test_wrong_setting_names_its_line(block: dict[str, Any], words: str, tmp_path: Path) -> None:
    for defaults, row, line in ((block, None, 3), (None, block, 9)):
        with pytest.raises(KilnError) as caught:
            load.load_recipes(matrix(tmp_path, defaults, row))
        assert words in caught.value.message
        assert caught.value.message.startswith(f"amis.yaml:{line}:")
        assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ({"tags": "team"}, "--tags: 'team' is not KEY=VALUE"),
        ({"time_limits": "all=4h,all=5h"}, "--time-limits: "),
        ({"spot": "maybe"}, "--spot: 'maybe': "),
        ({"ssh_interface": "session_manager"}, "ssh_interface session_manager (--ssh-interface)"),
        ({"spot": "true", "capacity_reservation_id": "cr-01234567"}, "spot (--spot): "),
    ],
)
def test_wrong_flag_is_named(typed: dict[str, str], place: str) -> None:
    with pytest.raises(KilnError) as caught:
        overridden(Account(), typed, "x86_64")
    assert caught.value.message.startswith(place)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proxy", "http://me:S3cret@proxy.example:3128"),
        ("mirrors", "https://a.example=https://me:S3cret@mirror.example"),
    ],
)
def test_message_hides_the_password_of_a_url(name: str, text: str, tmp_path: Path) -> None:
    source, _, mirror = text.partition("=")
    with pytest.raises(KilnError) as in_the_matrix:
        load.load_recipes(matrix(tmp_path, {name: {source: mirror} if mirror else text}, None))
    with pytest.raises(KilnError) as in_a_flag:
        overridden(Account(), {name: text}, "x86_64")
    for caught in (in_the_matrix, in_a_flag):
        assert "://…@" in caught.value.message
        assert "S3cret" not in f"{caught.value.message} {caught.value.hint}{caught.value.findings}"


@pytest.mark.parametrize("name", HELPS)
def test_flag_is_typed_as_its_help_says(name: str) -> None:
    text = SETTINGS[name].example.strip('"') or "true"
    got = overridden(Account(), {name: text}, "x86_64")
    assert getattr(got, name) not in (None, (), {}, False)
    assert SETTINGS[name].example in HELPS[name][1]


def subnets(ec2: Any) -> list[str]:
    """Two private subnets of a VPC with the tag Class=build; the second has more addresses."""
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = []
    for block in ("10.9.0.0/28", "10.9.1.0/24"):
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=block)["Subnet"]["SubnetId"]
        ec2.create_tags(Resources=[subnet], Tags=[{"Key": "Class", "Value": "build"}])
        made.append(subnet)
    return made


def test_way_in_follows_the_subnet(ec2: Any) -> None:
    small, _ = subnets(ec2)
    got = network.find_network(Account(subnet_id=small), AWS)
    assert (got.ssh_interface, got.source_cidrs) == ("private_ip", ("10.0.0.9 for 10.9.0.0/28/32",))
    ec2.modify_subnet_attribute(SubnetId=small, MapPublicIpOnLaunch={"Value": True})
    got = network.find_network(Account(subnet_id=small), AWS)
    assert (got.ssh_interface, got.source_cidrs) == ("public_ip", ("192.0.2.7/32",))


def test_subnet_filter_needs_a_choice_among_several(ec2: Any) -> None:
    small, large = subnets(ec2)
    build = {"tag:Class": "build"}
    with pytest.raises(KilnError, match="2 subnets match subnet_filter tag:Class=build") as caught:
        network.find_network(Account(subnet_filter=SubnetFilter(filters=build)), AWS)
    assert "most_free" in caught.value.hint
    for choice, expected in (
        (SubnetFilter(filters=build, most_free=True), {large}),
        (SubnetFilter(filters=build, random=True), {small, large}),
        (SubnetFilter(filters={**build, "cidr-block": "10.9.0.0/28"}), {small}),
    ):
        assert network.find_network(Account(subnet_filter=choice), AWS).subnets[0] in expected
    with pytest.raises(KilnError, match="no subnet matches subnet_filter tag:Class=no") as caught:
        network.find_network(Account(subnet_filter=SubnetFilter(filters={"tag:Class": "no"})), AWS)
    assert caught.value.exit_status == 1


def test_checked_instance_is_launched_with_the_settings() -> None:
    way = Network(("subnet-01234567",), "vpc-1", "public_ip", ())
    access = Access("key", Path("key"), ("sg-01234567",), way)
    wanted = Account(iam_instance_profile="p", spot=True)
    assert instance.launch_settings(access, wanted, None, way.subnets[0]) == {
        "SecurityGroupIds": ["sg-01234567"],
        "SubnetId": "subnet-01234567",
        "IamInstanceProfile": {"Name": "p"},
        "InstanceMarketOptions": {"MarketType": "spot"},
    }
    wanted = Account(ssh_interface="public_ip")
    launch = instance.launch_settings(access, wanted, None, way.subnets[0])
    assert launch["NetworkInterfaces"][0]["AssociatePublicIpAddress"] is True


@pytest.mark.parametrize("account", [Account(), Account(ssh_interface="public_ip")])
def test_efa_image_is_checked_with_an_efa_interface(account: Account) -> None:
    way = Network((None,), "vpc-1", "public_ip", ())
    access = Access("key", Path("key"), ("sg-01234567",), way)
    (card,) = instance.launch_settings(access, account, None, None, efa=True)["NetworkInterfaces"]
    assert (card["InterfaceType"], card["Groups"]) == ("efa", ["sg-01234567"])


def test_efa_group_allows_all_traffic_in_itself(ec2: Any, tmp_path: Path) -> None:
    run = Run("20261121T000000Z-aaaa", "row", tmp_path)
    access = make_access(run, AWS, Account(), efa=True)
    (group,) = ec2.describe_security_groups(GroupIds=list(access.security_groups))["SecurityGroups"]
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        pairs = [pair["GroupId"] for rule in rules for pair in rule["UserIdGroupPairs"]]
        assert pairs == [group["GroupId"]]


def test_access_is_a_tagged_group_or_that_of_the_settings(
    ec2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def group_of(run: Run, **settings: Any) -> Any:
        run.folder.mkdir()
        ids = list(make_access(run, AWS, Account(**settings)).security_groups)
        (group,) = ec2.describe_security_groups(GroupIds=ids)["SecurityGroups"]
        return group

    first, second, third = (Run(f"20261121T000000Z-aaa{n}", "row", tmp_path / n) for n in "abc")
    blocks = ("10.0.0.0/8", "192.0.2.0/24")
    group = group_of(first, tags={"team": "ml"}, ssh_source_cidrs=blocks)
    assert [block["CidrIp"] for block in group["IpPermissions"][0]["IpRanges"]] == [*blocks]
    (key,) = ec2.describe_key_pairs()["KeyPairs"]
    for tags in (group["Tags"], key["Tags"]):
        assert {"Key": "team", "Value": "ml"} in tags
        assert {"Key": "kiln:run-id", "Value": first.id} in tags
    own = group["GroupId"]
    assert group_of(second, security_group_ids=(own,))["GroupId"] == own
    monkeypatch.setattr(session, "require_plugin", lambda: None)
    assert group_of(third, ssh_interface="session_manager")["IpPermissions"] == []


def test_session_plugin_gets_the_arguments_of_the_cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """awscli/customizations/sessionmanager.py of aws/aws-cli."""
    settings_file, endpoint = tmp_path / "session.json", "http://127.0.0.1:1"
    settings_file.write_text(json.dumps({"endpoint_url": endpoint, "aws_access_key_id": "K"}))
    answer = {"SessionId": "s", "TokenValue": "t", "StreamUrl": "ws://x"}
    client = SimpleNamespace(
        start_session=lambda **_: answer, meta=SimpleNamespace(endpoint_url=endpoint)
    )
    ran: list[Any] = []
    monkeypatch.setattr("botocore.session.Session.create_client", lambda *_, **__: client)
    monkeypatch.setattr("os.execve", lambda *given: ran.append(given))
    session.carry("us-east-1", str(settings_file), "i-0123", "22")
    ((_, words, environment),) = ran
    assert json.loads(words[1]) == answer
    assert words[2:5] == ["us-east-1", "StartSession", ""]
    assert json.loads(words[5])["Target"] == "i-0123"
    assert words[6] == endpoint
    assert environment["AWS_ACCESS_KEY_ID"] == "K"


def test_refused_session_is_one_line_and_ssh_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_file = tmp_path / "session.json"
    settings_file.write_text('{"aws_access_key_id": "K", "aws_secret_access_key": "S"}')
    client = boto3.client("ssm", "us-east-1", aws_access_key_id="K", aws_secret_access_key="S")
    stubber = Stubber(client)
    stubber.add_client_error("start_session", "TargetNotConnected", "i-0123 is\nnot connected.")
    stubber.activate()
    monkeypatch.setattr("botocore.session.Session.create_client", lambda *_, **__: client)
    with pytest.raises(SystemExit) as ended:
        session.carry_or_explain("us-east-1", str(settings_file), "i-0123", "22")
    line = str(ended.value)
    reason = (
        "no session of i-0123 could be opened: StartSession answered TargetNotConnected: "
        "i-0123 is not connected."
    )
    assert line == f"AMI Kiln: {reason}"
    # What ssh adds when its proxy command ends.
    assert session.reason_in(f"{line}\nConnection closed by UNKNOWN port 65535\n") == reason
    assert session.reason_in("kex\nConnection refused\n") == "Connection refused"
