"""`aws:` in amis.yaml, its flags and its environment: what wins, what is refused, what EC2 gets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber

from kiln.base.account import SETTINGS, Account, Aws, SubnetFilter, variables
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cli.options import BuildSettings
from kiln.cli.task import Doc
from kiln.cloud import instance, network, session
from kiln.cloud.network import Access, Network, make_access
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.matrix import load
from kiln.matrix.flags import overridden
from kiln.packer import render
from kiln.pipeline import verify

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


def test_a_row_comes_before_the_defaults_the_environment_before_it_and_flags_before_all(
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


def test_tags_and_mirrors_add_up_and_each_says_where_it_comes_from(tmp_path: Path) -> None:
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


def test_a_components_time_limit_counts_before_all_and_the_closest_layer_before_others(
    tmp_path: Path,
) -> None:
    assert render.time_limit(Account(), "cuda") == 2 * 3600
    defaults = {"time_limits": {"all": "90m", "nvidia-driver": "3h"}}
    got = account(tmp_path, defaults, {"time_limits": {"kernel": "45s"}}, time_limits="efa=1h")
    names = ("all", "nvidia-driver", "kernel", "efa", "tuning")
    assert [render.time_limit(got, name) for name in names] == [5400, 10800, 45, 3600, 5400]
    assert got.shown() == [
        "time_limits all=90m (amis.yaml:3:32), nvidia-driver=3h (amis.yaml:3:56), "
        "kernel=45s (amis.yaml:9:35), efa=1h (--time-limits)"
    ]
    assert render.account_variables(got)["time_limits"] == {
        "all": "90m", "nvidia-driver": "3h", "kernel": "45s", "efa": "1h",
    }  # fmt: skip


def test_null_takes_off_what_the_defaults_set(tmp_path: Path) -> None:
    got = account(tmp_path, {"proxy": "http://p:3128"}, {"proxy": None})
    assert got.proxy is None
    assert got.shown() == ["proxy none (amis.yaml:9:18)"]


LISTS = {
    "subnet_ids": ["subnet-01234567"],
    "security_group_ids": ["sg-01234567"],
    "ssh_source_cidrs": ["10.0.0.0/8"],
    "no_proxy": [".example"],
    "instance_types": {"x86_64": ["g5.xlarge"]},
}


@pytest.mark.parametrize("name", LISTS)
def test_an_empty_list_of_a_row_takes_off_what_the_defaults_set(tmp_path: Path, name: str) -> None:
    empty: Any = {"x86_64": []} if name == "instance_types" else []
    got = account(tmp_path, {name: LISTS[name]}, {name: empty})
    assert getattr(got, name) == ()
    assert got.shown() == [f"{name} none ({got.origins[name]})"]


def test_a_subnet_takes_the_place_of_a_filter_that_is_farther_away(tmp_path: Path) -> None:
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


def test_how_the_account_is_used_makes_no_other_ami(tmp_path: Path) -> None:
    (plain,) = load.load_recipes(matrix(tmp_path, None, None))
    (tagged,) = load.load_recipes(matrix(tmp_path, {"tags": {"a": "b"}}, {"spot": True}))
    assert plain.digest() == tagged.digest()


# A block that is wrong, and what a person reads after file, line and column.
A, B, M = "https://a.example", "https://b.example", "https://m"
WRONG = [
    ({"subnet": "subnet-01234567"}, "there is no such key here: did you mean 'subnet_id'"),
    ({"subnet_filter": {"filters": {"vpc-id": "a"}, "mostfree": True}}, "mean 'most_free'?"),
    ({"ssh_interface": "vpn"}, "Input should be 'public_ip', 'private_ip' or 'session_manager'"),
    ({"ssh_source_cidrs": ["10.0.0.1"]}, "10.0.0.1 has no prefix length"),
    ({"ssh_source_cidrs": ["10.0.0.1/8"]}, "10.0.0.1/8 is not an IPv4 block"),
    ({"ssh_source_cidrs": ["0.0.0.0/0"]}, "0.0.0.0/0 is the whole internet"),
    ({"instance_types": {"x86_64": ["g5.xlarge"] * 2}}, "g5.xlarge is listed twice"),
    ({"tags": {"aws:x": "1"}}, "tag 'aws:x' is reserved"),
    ({"tags": {"cost": 42}}, "(it is 42); put it in quotes"),
    ({"proxy": "http://me:pw@p:1"}, "is not a proxy's URL without user and password"),
    ({"time_limits": {"cudda": "3h"}}, "there is no component cudda: did you mean 'cuda'?"),
    ({"mirrors": {A: "http://m"}}, "http://m has no TLS, and https://a"),
    ({"mirrors": {A: M, B: f"{M}/b"}}, "https://m/b is below another vendor or mirror"),
    ({"mirrors": {A: f"{A}/cache"}}, "/cache is below another vendor or mirror"),
    ({"mirrors": {A: "https://me:pw@m"}}, "a password would be in Packer's log"),
    (
        {"region": "eu-west-1", "kms_key_id": "arn:aws:kms:us-east-1:123456789012:alias/ami"},
        "kms_key_id: the key is in us-east-1, and the build in eu-west-1",
    ),
    (
        {"subnet_id": "subnet-01234567", "subnet_filter": {"filters": {"vpc-id": "v"}}},
        "give either subnet_id, subnet_ids or subnet_filter",
    ),
    (
        {"spot": True, "capacity_reservation_id": "cr-01234567"},
        "Spot instances do not run in a capacity reservation",
    ),
    (
        {"security_group_ids": ["sg-01234567"], "ssh_source_cidrs": ["10.0.0.0/8"]},
        "to which AMI Kiln adds no rule",
    ),
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
    ("typed", "words"),
    [
        ({"tags": "team"}, "--tags: 'team': "),
        ({"time_limits": "all=4h,all=5h"}, "--time-limits: 'all=4h,all=5h': "),
        (
            {"proxy": "me:pw@proxy.example:3128"},
            "--proxy: '…@proxy.example:3128' is not a proxy's URL without user and password, such "
            "as http://proxy.example.com:3128: a password would be in Packer's log",
        ),
        ({"time_limits": "cudda=4h"}, "--time-limits: there is no component cudda: did you mean"),
        ({"spot": "maybe"}, "--spot: 'maybe': Input should be a valid boolean"),
        (
            {"ssh_interface": "session_manager"},
            "ssh_interface session_manager (--ssh-interface) needs an iam_instance_profile",
        ),
        (
            {"spot": "true", "capacity_reservation_id": "cr-01234567"},
            "spot (--spot): Spot instances do not run in a capacity reservation",
        ),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name(typed: dict[str, str], words: str) -> None:
    with pytest.raises(KilnError) as caught:
        overridden(Account(), typed, "x86_64")
    assert words in caught.value.message
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "block",
    [
        {"proxy": "http://me:S3cret@proxy.example:3128"},
        {"mirrors": {"https://a.example": "https://me:S3cret@mirror.example"}},
        {"mirrors": {"https://me:S3cret@a.example": "https://mirror.example"}},
        {"proxy": "http://me:a S3cret@proxy.example:3128"},
        {"proxy": "http://me:3/S3cret@proxy.example:3128"},
    ],
)
def test_no_message_has_the_password_of_a_url(block: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KilnError) as in_the_matrix:
        load.load_recipes(matrix(tmp_path, block, None))
    ((name, value),) = block.items()
    pairs = value.items() if isinstance(value, dict) else ()
    text = " ".join(f"{key}={url}" for key, url in pairs) or value
    with pytest.raises(KilnError) as in_a_flag:
        overridden(Account(), {name: text}, "x86_64")
    for caught in (in_the_matrix, in_a_flag):
        assert "://…@" in caught.value.message
        assert "S3cret" not in f"{caught.value.message} {caught.value.hint}"
        assert "S3cret" not in str(caught.value.findings)


def test_what_is_not_built_may_be_in_another_region_than_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = {"region": "eu-west-1", "kms_key_id": "arn:aws:kms:eu-west-1:123456789012:alias/ami"}
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert account(tmp_path, block).region == "us-east-1"


def test_a_wrong_variable_of_the_environment_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KILN_AWS_SSH_SOURCE_CIDRS", "192.0.2.7")
    with pytest.raises(KilnError, match=r"^KILN_AWS_SSH_SOURCE_CIDRS: 192.0.2.7 has no prefix"):
        overridden(Account(), {}, "x86_64")


@pytest.mark.parametrize("name", HELPS)
def test_flag_is_typed_as_its_help_says(name: str) -> None:
    text = SETTINGS[name].example.strip('"') or "true"
    got = overridden(Account(), {name: text}, "x86_64")
    assert getattr(got, name) not in (None, (), {}, False)
    assert SETTINGS[name].example in HELPS[name][1]


def test_every_setting_but_one_has_a_flag() -> None:
    # No build makes a role.
    assert Aws.model_fields.keys() - SETTINGS.keys() == {"permissions_boundary"}


def subnets(ec2: Any) -> list[str]:
    """Two private subnets of a VPC with the tag Class=build; the second has more addresses."""
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = []
    for block in ("10.9.0.0/28", "10.9.1.0/24"):
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=block)["Subnet"]["SubnetId"]
        ec2.create_tags(Resources=[subnet], Tags=[{"Key": "Class", "Value": "build"}])
        made.append(subnet)
    return made


def test_a_subnet_without_public_addresses_is_reached_from_inside(ec2: Any) -> None:
    small, _ = subnets(ec2)
    got = network.find_network(Account(subnet_id=small), AWS)
    assert (got.ssh_interface, got.source_cidrs) == ("private_ip", ("10.0.0.9 for 10.9.0.0/28/32",))


def test_a_subnet_with_public_addresses_lets_this_machines_public_one_in(ec2: Any) -> None:
    small, _ = subnets(ec2)
    ec2.modify_subnet_attribute(SubnetId=small, MapPublicIpOnLaunch={"Value": True})
    got = network.find_network(Account(subnet_id=small), AWS)
    assert (got.ssh_interface, got.source_cidrs) == ("public_ip", ("192.0.2.7/32",))


def test_who_is_let_in_can_be_said(ec2: Any) -> None:
    wanted = Account(ssh_interface="private_ip", ssh_source_cidrs=("10.0.0.0/8", "192.0.2.0/24"))
    assert network.find_network(wanted, AWS).source_cidrs == wanted.ssh_source_cidrs


def test_a_filter_finds_the_subnet_and_several_need_a_choice(ec2: Any) -> None:
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


def test_the_way_to_a_private_network_is_the_routes() -> None:
    assert network.address_towards("127.0.0.0/8") == "127.0.0.1"


def test_key_pair_and_group_carry_your_tags_and_the_group_lets_all_blocks_in(
    ec2: Any, tmp_path: Path
) -> None:
    run = Run("20261121T000000Z-aaaa", "row", tmp_path)
    wanted = Account(tags={"team": "ml"}, ssh_source_cidrs=("10.0.0.0/8", "192.0.2.0/24"))
    access = make_access(run, AWS, wanted)
    (group,) = ec2.describe_security_groups(GroupIds=list(access.security_groups))["SecurityGroups"]
    blocks = [block["CidrIp"] for block in group["IpPermissions"][0]["IpRanges"]]
    (key,) = ec2.describe_key_pairs()["KeyPairs"]
    assert blocks == ["10.0.0.0/8", "192.0.2.0/24"]
    for tags in (group["Tags"], key["Tags"]):
        assert {"Key": "team", "Value": "ml"} in tags
        assert {"Key": "kiln:run-id", "Value": run.id} in tags


def test_groups_of_yours_are_used_as_they_are(ec2: Any, tmp_path: Path) -> None:
    before = ec2.describe_security_groups()["SecurityGroups"]
    run = Run("20261121T000000Z-aaaa", "row", tmp_path)
    access = make_access(run, AWS, Account(security_group_ids=("sg-01234567",)))
    assert access.security_groups == ("sg-01234567",)
    assert ec2.describe_security_groups()["SecurityGroups"] == before


def test_session_manager_opens_no_port(
    ec2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "require_plugin", lambda: None)
    run = Run("20261121T000000Z-aaaa", "row", tmp_path)
    access = make_access(run, AWS, Account(ssh_interface="session_manager"))
    (group,) = ec2.describe_security_groups(GroupIds=list(access.security_groups))["SecurityGroups"]
    assert group["IpPermissions"] == []


def test_session_manager_needs_awss_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KilnError, match="needs session-manager-plugin, which is not on PATH"):
        session.require_plugin()


def launched_with(wanted: Account, ssh_interface: str = "public_ip") -> dict[str, Any]:
    way = Network(("subnet-01234567",), "vpc-1", ssh_interface, ())
    access = Access("key", Path("key"), ("sg-01234567",), way)
    return instance.launch_settings(access, wanted, wanted.capacity_reservation_id, way.subnets[0])


def test_the_instance_that_is_checked_is_launched_as_the_settings_say() -> None:
    assert launched_with(Account(iam_instance_profile="p", spot=True)) == {
        "SecurityGroupIds": ["sg-01234567"],
        "SubnetId": "subnet-01234567",
        "IamInstanceProfile": {"Name": "p"},
        "InstanceMarketOptions": {"MarketType": "spot"},
    }
    (interface,) = launched_with(Account(ssh_interface="public_ip"))["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is True
    assert interface["SubnetId"] == "subnet-01234567"


@pytest.mark.parametrize("account", [Account(), Account(ssh_interface="public_ip")])
def test_efa_image_is_checked_with_an_efa_interface(account: Account) -> None:
    way = Network((None,), "vpc-1", "public_ip", ())
    access = Access("key", Path("key"), ("sg-01234567",), way)
    (card,) = instance.launch_settings(access, account, None, None, efa=True)["NetworkInterfaces"]
    assert (card["InterfaceType"], card["Groups"]) == ("efa", ["sg-01234567"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("p5.48xlarge", True), ("g4dn.xlarge", False), ("p6-b300.48xlarge", False), ("other", False)],
)
def test_efa_interface_needs_efa_on_the_first_card(kind: str, expected: bool) -> None:
    recipe = next(item for item in load.load_recipes() if item.efa)
    record = SimpleNamespace(recipe=recipe, verify_instance_type=kind)
    assert verify.attaches_efa(record) is expected  # type: ignore[arg-type]
    without = SimpleNamespace(recipe=recipe.changed(efa=None), verify_instance_type=kind)
    assert not verify.attaches_efa(without)  # type: ignore[arg-type]


def test_efa_group_allows_all_traffic_in_itself(ec2: Any, tmp_path: Path) -> None:
    run = Run("20261121T000000Z-aaaa", "row", tmp_path)
    access = make_access(run, AWS, Account(), efa=True)
    (group,) = ec2.describe_security_groups(GroupIds=list(access.security_groups))["SecurityGroups"]
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        pairs = [pair["GroupId"] for rule in rules for pair in rule["UserIdGroupPairs"]]
        assert pairs == [group["GroupId"]]


def test_what_packer_gets() -> None:
    wanted = Account(
        tags={"team": "ml"}, kms_key_id="alias/a", spot=True, proxy="http://p:1", no_proxy=(".a",)
    )
    assert render.account_variables(wanted) == {
        "tags": {"team": "ml"},
        "kms_key_id": "alias/a",
        "iam_instance_profile": "",
        "spot_price": "auto",
        "proxy": "http://p:1",
        "no_proxy": [".a"],
        "mirrors": {},
        "time_limits": {},
    }


def test_the_page_has_every_setting_and_its_variable() -> None:
    page = (ROOT / "docs" / "your-account.md").read_text()
    assert [name for name in SETTINGS if f"`{name}`" not in page] == []
    shown = {name for block in page.split("```yaml")[1:] for name in _keys(block.split("```")[0])}
    assert shown - {*SETTINGS} == set()


def _keys(text: str) -> set[str]:
    """The settings that an example of the page has."""
    data = yaml.safe_load(text)
    blocks = [data.get("defaults", {}), *data.get("amis", [])]
    return {name for block in blocks for name in block.get("aws", {})}


def test_ssh_by_session_hands_the_plugin_what_the_cli_hands_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments: awscli/customizations/sessionmanager.py of aws/aws-cli. In the lab it gets the
    lab's keys too: it resumes and ends sessions by itself."""
    own = {"endpoint_url": "http://127.0.0.1:1", "aws_access_key_id": "K"}
    target = SimpleNamespace(region="us-east-1", client_settings=lambda: own)
    command = session.proxy_command(target, tmp_path)
    assert command.endswith(" %h %p")
    settings_file = tmp_path / "session.json"
    assert str(settings_file) in command
    assert settings_file.stat().st_mode & 0o777 == 0o600
    answer = {"SessionId": "s", "TokenValue": "t", "StreamUrl": "ws://x", "ResponseMetadata": {}}
    asked: list[dict[str, Any]] = []
    ran: list[Any] = []

    def client(_: Any, service: str, **given: Any) -> Any:
        asked.append({"service": service, **given})
        return SimpleNamespace(
            start_session=lambda **given: asked.append(given) or answer,
            meta=SimpleNamespace(endpoint_url=given["endpoint_url"]),
        )

    monkeypatch.setattr("botocore.session.Session.create_client", client)
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    monkeypatch.setattr("os.execve", lambda *given: ran.append(given))
    session.carry("us-east-1", str(settings_file), "i-0123", "22")
    assert asked[0] == {"service": "ssm", "region_name": "us-east-1", **own}
    assert asked[1]["DocumentName"] == "AWS-StartSSHSession"
    ((_, words, environment),) = ran
    assert json.loads(words[1]) == {"SessionId": "s", "TokenValue": "t", "StreamUrl": "ws://x"}
    assert words[2:5] == ["us-east-1", "StartSession", ""]
    assert json.loads(words[5])["Target"] == "i-0123"
    assert words[6] == "http://127.0.0.1:1"
    aws = {name: text for name, text in environment.items() if name.startswith("AWS_")}
    assert aws == {"AWS_ACCESS_KEY_ID": "K"}


def test_a_session_that_is_refused_is_one_line_and_the_reason_why_ssh_fails(
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
