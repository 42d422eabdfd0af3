"""The IAM policy: everything that is called, nothing else, and only on what AMI Kiln made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from typing import Any
from urllib.request import Request, urlopen

import pytest

from devel import iam_calls, iam_requests, iam_simulate, packers
from kiln.cloud import iam
from kiln.facts import table
from kiln.matrix import load
from kiln.packer import process, program
from kiln.packer.render import BAKE_TAGS, render, write_inputs

pytestmark = pytest.mark.slow

called_in_builds = cache(iam_calls.called_in_builds)


def test_each_call_is_allowed() -> None:
    missing = {
        action: place
        for action, place in called_in_builds().items()
        if action not in iam_calls.allowed("kiln") | set(table("iam")["free"])
    }
    assert not missing, f"add to kiln/facts/knowledge/iam.yaml, then ./invoke generate: {missing}"


def test_each_permission_is_called() -> None:
    assert iam_calls.allowed("kiln") - set(called_in_builds()) == set()


@pytest.mark.parametrize("role", iam.PUBLISHING)
def test_publishing_role_allows_what_it_calls(role: str) -> None:
    may = {
        action
        for statement in table("iam_publish")[role]["statements"]
        for action, callers in statement["actions"].items()
        if "kiln" in callers
    }
    assert may == set(iam_calls.called_in(role)), iam_calls.called_in(role)


def test_changes_need_a_run_tag() -> None:
    for statement in iam.policy()["Statement"]:
        kinds = {arn.rpartition(":")[2] for arn in statement["Resource"] if arn != "*"}
        reading = all("Describe" in a or "Get" in a for a in statement["Action"])
        into = kinds <= {"vpc/*", "network-interface/*", "subnet/*"}
        condition = json.dumps(statement.get("Condition", ""))
        held = ("kiln:run-id", "ec2:CreateAction", "ec2:Owner")
        assert reading or into or any(word in condition for word in held), statement["Sid"]


SIMULATED = iam_requests.DATA / "simulated.json"
HOW = """the policy or the questions have changed; ask the simulator again, and read what differs:
  (cd devel/iam_simulate && npm install)
  .venv/bin/python -m devel.iam_simulate"""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, str]]:
    """Policy → question → verdict of @cloud-copilot/iam-simulate, as recorded for this policy.

    No library of Python's evaluates conditions (moto ignores them), and Node is not a dependency.
    """
    simulated: dict[str, Any] = json.loads(SIMULATED.read_text())
    assert simulated["policies"] == iam_simulate.digests(), HOW
    assert simulated["questions"] == iam_requests.questions(), HOW
    keys = [json.dumps(question, sort_keys=True) for question in simulated["questions"]]
    return {
        name: dict(zip(keys, answers, strict=True))
        for name, answers in simulated["verdicts"].items()
    }


def denied(verdicts: dict[str, str], asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call for call in asked if verdicts[json.dumps(call, sort_keys=True)] != "Allowed"]


def test_each_call_of_a_build_is_allowed(verdicts: dict[str, dict[str, str]]) -> None:
    calls = iam_requests.checks(iam_requests.recorded())
    assert len(calls) > 30
    assert denied(verdicts["main"], calls) == []


@pytest.mark.parametrize("attack", iam_requests.ATTACKS)
def test_an_attack_is_denied(verdicts: dict[str, dict[str, str]], attack: str) -> None:
    question = json.dumps(iam_requests.ATTACKS[attack], sort_keys=True)
    assert verdicts["main"][question] == "ImplicitlyDenied"


@pytest.mark.parametrize("role", iam_simulate.CHANGING)
def test_publishing_role_is_denied_attacks(verdicts: dict[str, dict[str, str]], role: str) -> None:
    allowed = {
        name
        for name, question in iam_requests.MORE_ATTACKS.items()
        if verdicts[role][json.dumps(question, sort_keys=True)] != "ImplicitlyDenied"
    }
    assert allowed == iam_requests.OPENED[role]


def test_matrix_types_may_be_launched() -> None:
    (launch,) = [s for s in iam.policy()["Statement"] if s["Sid"] == "LaunchInstance"]
    allowed = launch["Condition"]["StringLike"]["ec2:InstanceType"]
    kinds = {r.instance_type for r in load.load_recipes()}
    kinds |= {r.verify_instance_type for r in load.load_recipes()}
    assert all(any(fnmatch(kind, pattern) for pattern in allowed) for kind in kinds)
    assert not any(pattern.startswith("*") for pattern in allowed)


@pytest.mark.parametrize("part", ["statements", "settings"])
def test_iam_would_take_the_policy(part: str) -> None:
    document = iam.policy(part)
    sids = [statement["Sid"] for statement in document["Statement"]]
    assert len(sids) == len(set(sids))
    assert all(re.fullmatch(r"[A-Za-z0-9]+", sid) for sid in sids)
    assert not any("*" in action for s in document["Statement"] for action in s["Action"])
    # IAM's limit for a managed policy, which does not count white space.
    assert len(re.sub(r"\s", "", iam.policy_text(part))) <= 6144


@pytest.fixture(scope="module", params=packers.usable() or [None], ids=str)
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What Packer asks of EC2 for a rendered row: moto answers, nothing is logged into."""
    if request.param is None:
        pytest.skip("needs Packer: there is none")
    found: program.Packer = request.param
    import boto3
    from moto.core.responses import BaseResponse
    from moto.ec2.models.amis import AMIS, AmiBackend
    from moto.server import ThreadedMotoServer

    calls: list[tuple[str, dict[str, Any]]] = []
    answer = BaseResponse.call_action
    make_image = AmiBackend.create_image

    def create_image(
        self: AmiBackend, instance: str, name: str, about: str, tag_specifications: list[Any]
    ) -> Any:
        """moto's, which answers the plugin's tags of a snapshot with 500."""
        of = {
            specification["ResourceType"]: specification["Tags"]
            for specification in tag_specifications
        }
        image = [{"ResourceType": "image", "Tags": of.get("image", [])}]
        ami = make_image(self, instance, name, about, image)
        for tag in of.get("snapshot", []):
            ami.ebs_snapshot.add_tag(tag["Key"], tag["Value"])
        return ami

    def noted(self: BaseResponse) -> Any:
        calls.append((f"{self.service_name}:{self._get_action()}", dict(self.querystring)))
        return answer(self)

    recipe = load.load_recipes()[0]
    rendered = render(recipe)
    folder = write_inputs(rendered, tmp_path_factory.mktemp("run"))
    if not found.has_plugins:
        (folder / "plugins.pkr.hcl").unlink()
    for path in (folder / "../shared").rglob("*.pkr.hcl"):
        # Without a machine there is nothing to log into and nothing to provision.
        text = re.sub(
            r"^  ssh_username .*", '  communicator = "none"', path.read_text(), flags=re.M
        )
        text = re.sub(r"^  ssh_(interface|timeout) .*\n", "", text, flags=re.M)
        text = re.sub(r'^  provisioner ".*(?=^  post-processor)', "", text, flags=re.M | re.S)
        path.write_text(text)
    patch = pytest.MonkeyPatch()
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        # What another Packer's run has left in moto.
        urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()
        client = boto3.client("ec2", "us-east-1", endpoint_url=endpoint)
        parent = AMIS[0]["ami_id"]
        group = client.create_security_group(GroupName="own", Description="own")["GroupId"]
        key = client.create_key_pair(KeyName="own", KeyType="ed25519")
        (folder / "key.pem").write_text(key["KeyMaterial"])
        # The plugin's requests for the AMI's attributes take no custom_endpoint_ec2.
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setattr(BaseResponse, "call_action", noted)
        patch.setattr(AmiBackend, "create_image", create_image)
        result = process.run_build(
            found,
            folder,
            log=folder / "packer.log",
            manifest=folder / "manifest.json",
            variables={
                "run_id": "r1",
                "git_commit": "c0",
                "target": "lab",
                "recipe_digest": rendered.digest,
                "input_digest": "i0",
                "source_ami": parent,
                "ssh_source_cidrs": ["192.0.2.1/32"],
                "security_group_ids": [group],
                "ssh_keypair_name": "own",
                "ssh_private_key_file": str(folder / "key.pem"),
                "custom_endpoint_ec2": endpoint,
                "skip_metadata_api_check": True,
                "skip_region_validation": True,
                "skip_credential_validation": True,
                "poll_seconds": 1,
            },
        )
        patch.undo()
        assert result.exit_status == 0, result.errors
        image = client.describe_images(Owners=["self"])["Images"][0]
        snapshot = client.describe_snapshots(
            SnapshotIds=[image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]]
        )["Snapshots"][0]
        yield {"result": result, "calls": calls, "image": image, "snapshot": snapshot}
    finally:
        patch.undo()
        server.stop()


def test_packer_calls_what_it_is_allowed(seen: dict[str, Any]) -> None:
    assert seen["result"].exit_status == 0
    called = {action for action, _ in seen["calls"]}
    assert called == iam_calls.allowed("packer") - set(table("iam")["unseen"])


def test_packer_tags_instance_and_volume_at_launch(
    seen: dict[str, Any],
) -> None:
    (launch,) = [given for action, given in seen["calls"] if action == "ec2:RunInstances"]
    kinds = {v[0]: k for k, v in launch.items() if k.endswith(".ResourceType")}
    # The plugin tags the network interface too.
    assert {"instance", "volume"} <= set(kinds) <= {"instance", "volume", "network-interface"}
    for name in kinds.values():
        prefix = name.removesuffix("ResourceType")
        keys = {v[0] for k, v in launch.items() if k.startswith(prefix) and k.endswith("Key")}
        assert "kiln:run-id" in keys


def test_the_ami_and_its_snapshot_carry_every_tag(seen: dict[str, Any]) -> None:
    for made in (seen["image"], seen["snapshot"]):
        tags = {tag["Key"]: tag["Value"] for tag in made["Tags"]}
        assert set(BAKE_TAGS) <= set(tags)
        assert (tags["kiln:run-id"], tags["kiln:driver"]) == ("r1", "510.47.03")
        assert re.fullmatch(r"[0-9a-f]{64}", tags["kiln:recipe-digest"])
