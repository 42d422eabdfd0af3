"""Systems Manager as its users know it: agents register, commands run in guests and report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        },
    }
)
CORE = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
SHELL = "AWS-RunShellScript"


@pytest.fixture(scope="module")
def ssm(client: Callable[[str], Any]) -> Any:
    return client("ssm")


@pytest.fixture(scope="module")
def profile(client: Callable[[str], Any]) -> Iterator[dict[str, str]]:
    """An instance profile whose role may register."""
    iam, name = client("iam"), f"managed-{time.time_ns()}"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    iam.attach_role_policy(RoleName=name, PolicyArn=CORE)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    yield {"Name": name}
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    iam.delete_instance_profile(InstanceProfileName=name)
    iam.detach_role_policy(RoleName=name, PolicyArn=CORE)
    iam.delete_role(RoleName=name)


def until(found: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Wait until there is a result."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = found()
        if result:
            return result
        time.sleep(0.1)
    raise AssertionError(what)


def ping(ssm: Any, instance_id: str) -> str:
    """The instance's PingStatus; "" when it is not registered."""
    filters = [{"Key": "InstanceIds", "Values": [instance_id]}]
    listed = ssm.describe_instance_information(Filters=filters)["InstanceInformationList"]
    return listed[0]["PingStatus"] if listed else ""


def ended(ssm: Any, command_id: str, instance_id: str) -> dict[str, Any]:
    """The invocation, when it is over."""

    def over() -> dict[str, Any] | None:
        got = ssm.get_command_invocation(CommandId=command_id, InstanceId=instance_id)
        return got if got["Status"] in ("Success", "Failed", "TimedOut", "Cancelled") else None

    return until(over, "the command does not end")


@pytest.fixture
def guest(launch, profile, ssm) -> Any:
    """A guest whose agent is online."""
    made = launch(
        IamInstanceProfile=profile,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": "fleet", "Value": "canary"}]}
        ],
    )
    until(lambda: ping(ssm, made.id) == "Online", "the agent does not register")
    return made


def test_a_command_runs_in_the_guest_and_its_end_is_told(ssm, guest) -> None:
    def send(*lines: str, **more: Any) -> dict[str, Any]:
        parameters = {"commands": list(lines)} | more.pop("Parameters", {})
        more = more or {"InstanceIds": [guest.id]}
        sent = ssm.send_command(DocumentName=SHELL, Parameters=parameters, **more)["Command"]
        return ended(ssm, sent["CommandId"], guest.id)

    told = send("cd /tmp", "echo one $PWD > made", "cat made", "id -un", "echo two >&2")
    assert told["StandardOutputContent"] == "one /tmp\nroot\n"
    assert (told["StandardErrorContent"], told["ResponseCode"]) == ("two\n", 0)
    assert (told["Status"], told["PluginName"]) == ("Success", "aws:runShellScript")
    assert guest.run("cat /tmp/made").stdout == "one /tmp\n"

    told = send("cat /wrong/file", Targets=[{"Key": "tag:fleet", "Values": ["canary"]}])
    assert (told["Status"], told["ResponseCode"]) == ("Failed", 1)
    wrong = "cat: /wrong/file: No such file or directory\nfailed to run commands: exit status 1"
    assert told["StandardErrorContent"] == wrong

    told = send("sleep 600", Parameters={"executionTimeout": ["1"]})
    assert (told["Status"], told["StatusDetails"]) == ("TimedOut", "ExecutionTimedOut")

    told = send("head -c 30000 /dev/zero | tr '\\0' a")
    assert len(told["StandardOutputContent"]) == 24_000
    assert told["StandardOutputContent"].endswith("a--output truncated--")

    sleeping = ssm.send_command(
        DocumentName=SHELL, Parameters={"commands": ["sleep 600"]}, InstanceIds=[guest.id]
    )["Command"]["CommandId"]
    until(lambda: guest.run("pgrep -fx 'sleep 600'").stdout, "the command does not start")
    ssm.cancel_command(CommandId=sleeping)
    assert ended(ssm, sleeping, guest.id)["Status"] == "Cancelled"
    assert guest.run("pgrep -fx 'sleep 600'").stdout == ""

    (listed,) = ssm.list_commands(CommandId=sleeping)["Commands"]
    assert (listed["Status"], listed["TargetCount"]) == ("Cancelled", 1)


def test_an_own_document_runs_the_steps_of_the_platform(ssm, guest) -> None:
    name = f"kiln-{time.time_ns()}"

    def step(name: str, platform: str, **inputs: Any) -> dict[str, Any]:
        return {
            "action": "aws:runShellScript",
            "name": name,
            "precondition": {"StringEquals": ["platformType", platform]},
            "inputs": inputs,
        }

    content = {
        "schemaVersion": "2.2",
        "parameters": {"word": {"type": "String", "allowedPattern": "[a-z]+"}},
        "mainSteps": [
            step("elsewhere", "Windows", runCommand=["echo never"]),
            step("first", "Linux", runCommand=["echo {{ word }}", "exit 3"]),
            step("second", "Linux", runCommand=["echo after"], workingDirectory="/tmp"),
        ],
    }
    ssm.create_document(Name=name, DocumentType="Command", Content=json.dumps(content))
    try:
        sent = ssm.send_command(
            DocumentName=name, Parameters={"word": ["hello"]}, InstanceIds=[guest.id]
        )["Command"]["CommandId"]
        assert ended(ssm, sent, guest.id)["Status"] == "Failed"
        (told,) = ssm.list_command_invocations(CommandId=sent, Details=True)["CommandInvocations"]
        shown = [(one["Name"], one["Status"]) for one in told["CommandPlugins"]]
        assert shown == [("elsewhere", "Success"), ("first", "Failed"), ("second", "Success")]
        first = ssm.get_command_invocation(CommandId=sent, InstanceId=guest.id, PluginName="first")
        assert (first["StandardOutputContent"], first["ResponseCode"]) == ("hello\n", 3)
        with pytest.raises(ClientError, match="InvalidParameters"):
            ssm.send_command(DocumentName=name, Parameters={"word": ["NO"]}, InstanceIds=[guest.id])
    finally:
        ssm.delete_document(Name=name)


def test_an_agent_that_stops_is_connection_lost(ssm, guest) -> None:
    guest.run("sudo systemctl stop amazon-ssm-agent")
    until(lambda: ping(ssm, guest.id) == "ConnectionLost", "it is still online")
    guest.run("sudo systemctl start amazon-ssm-agent")
    until(lambda: ping(ssm, guest.id) == "Online", "it does not come back")


def test_an_instance_without_the_policy_is_not_managed_and_gets_no_command(
    ssm, client, launch
) -> None:
    bare = launch()
    assert ping(ssm, bare.id) == ""
    with pytest.raises(ClientError, match="InvalidInstanceId"):
        ssm.send_command(
            DocumentName=SHELL, Parameters={"commands": ["true"]}, InstanceIds=[bare.id]
        )


def test_unknown_documents_and_parameters_are_refused(ssm) -> None:
    target = [{"Key": "tag:fleet", "Values": ["canary"]}]
    with pytest.raises(ClientError, match="InvalidDocument"):
        ssm.send_command(DocumentName="nobodys", Targets=target)
    with pytest.raises(ClientError, match="InvalidParameters"):
        ssm.send_command(
            DocumentName=SHELL, Targets=target, Parameters={"commands": ["a"], "colour": ["red"]}
        )
    with pytest.raises(ClientError, match="InvalidParameters"):
        ssm.send_command(DocumentName=SHELL, Targets=target)
    with pytest.raises(ClientError, match="not implemented"):
        ssm.send_command(
            DocumentName=SHELL,
            Targets=target,
            Parameters={"commands": ["a"]},
            OutputS3BucketName="results",
        )
