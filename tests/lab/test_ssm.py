"""Systems Manager as its users know it: agents register, commands run in guests and report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from conftest import launching

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
# What AWS's documentation attaches for the agents of Systems Manager and of CloudWatch.
POLICIES = [
    f"arn:aws:iam::aws:policy/{name}"
    for name in ("AmazonSSMManagedInstanceCore", "CloudWatchAgentServerPolicy")
]
# What a role needs besides for output to S3 and content from there.
BUCKETS = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"],
        "Resource": ["arn:aws:s3:::results-*", "arn:aws:s3:::content-*"],
    },
}
SHELL = "AWS-RunShellScript"


@pytest.fixture(scope="module")
def ssm(client: Callable[[str], Any]) -> Any:
    return client("ssm")


@pytest.fixture(scope="module")
def profile(client: Callable[[str], Any]) -> Iterator[dict[str, str]]:
    """An instance profile whose role may register and report."""
    iam, name = client("iam"), f"managed-{time.time_ns()}"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    for policy in POLICIES:
        iam.attach_role_policy(RoleName=name, PolicyArn=policy)
    iam.put_role_policy(RoleName=name, PolicyName="s3", PolicyDocument=json.dumps(BUCKETS))
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    yield {"Name": name}
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    iam.delete_instance_profile(InstanceProfileName=name)
    for policy in POLICIES:
        iam.detach_role_policy(RoleName=name, PolicyArn=policy)
    iam.delete_role_policy(RoleName=name, PolicyName="s3")
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


@pytest.fixture(scope="module")
def guest(ec2, key, source_ami, profile, ssm) -> Iterator[Any]:
    """A guest whose agent is online, shared by the tests."""
    with launching(ec2, key, source_ami) as launch:
        made = launch(
            IamInstanceProfile=profile,
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": "fleet", "Value": "canary"}]}
            ],
        )
        until(lambda: ping(ssm, made.id) == "Online", "the agent does not register")
        yield made


def test_a_command_runs_in_the_guest_and_its_end_is_told(ssm, guest) -> None:
    def send(*lines: str, **more: Any) -> dict[str, Any]:
        parameters = {"commands": list(lines)} | more.pop("Parameters", {})
        more = more or {"InstanceIds": [guest.id]}
        sent = ssm.send_command(DocumentName=SHELL, Parameters=parameters, **more)["Command"]
        return ended(ssm, sent["CommandId"], guest.id)

    answer = send("cd /tmp", "echo one $PWD > made", "cat made", "id -un", "echo two >&2")
    assert answer["StandardOutputContent"] == "one /tmp\nroot\n"
    assert (answer["StandardErrorContent"], answer["ResponseCode"]) == ("two\n", 0)
    assert (answer["Status"], answer["PluginName"]) == ("Success", "aws:runShellScript")
    assert guest.run("cat /tmp/made").stdout == "one /tmp\n"

    answer = send("cat /wrong/file", Targets=[{"Key": "tag:fleet", "Values": ["canary"]}])
    assert (answer["Status"], answer["ResponseCode"]) == ("Failed", 1)
    wrong = "cat: /wrong/file: No such file or directory\nfailed to run commands: exit status 1"
    assert answer["StandardErrorContent"] == wrong

    answer = send("sleep 600", Parameters={"executionTimeout": ["1"]})
    assert (answer["Status"], answer["StatusDetails"]) == ("TimedOut", "ExecutionTimedOut")

    answer = send("head -c 30000 /dev/zero | tr '\\0' a")
    assert len(answer["StandardOutputContent"]) == 24_000
    assert answer["StandardOutputContent"].endswith("a--output truncated--")

    sleeping = ssm.send_command(
        DocumentName=SHELL, Parameters={"commands": ["sleep 600"]}, InstanceIds=[guest.id]
    )["Command"]["CommandId"]
    until(lambda: guest.run("pgrep -fx 'sleep 600'").stdout, "the command does not start")
    ssm.cancel_command(CommandId=sleeping)
    assert ended(ssm, sleeping, guest.id)["Status"] == "Cancelled"
    assert guest.run("pgrep -fx 'sleep 600'").stdout == ""

    def listed() -> Any:
        # The step is over a moment before its command is.
        (found,) = ssm.list_commands(CommandId=sleeping)["Commands"]
        return found if found["Status"] == "Cancelled" else None

    assert until(listed, "the command is not cancelled")["TargetCount"] == 1


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
        (answer,) = ssm.list_command_invocations(CommandId=sent, Details=True)["CommandInvocations"]
        shown = [(plugin["Name"], plugin["Status"]) for plugin in answer["CommandPlugins"]]
        assert shown == [("elsewhere", "Success"), ("first", "Failed"), ("second", "Success")]
        first = ssm.get_command_invocation(CommandId=sent, InstanceId=guest.id, PluginName="first")
        assert (first["StandardOutputContent"], first["ResponseCode"]) == ("hello\n", 3)
        with pytest.raises(ClientError, match="InvalidParameters"):
            ssm.send_command(DocumentName=name, Parameters={"word": ["NO"]}, InstanceIds=[guest.id])
    finally:
        ssm.delete_document(Name=name)


def test_a_script_runs_where_its_document_has_downloaded_it(ssm, client, guest) -> None:
    bucket, name = f"content-{time.time_ns()}", f"kiln-{time.time_ns()}"
    client("s3").create_bucket(Bucket=bucket)
    client("s3").put_object(Bucket=bucket, Key="a/hello.sh", Body=b"echo hello\n")
    fetch = {
        "sourceType": "S3",
        "sourceInfo": json.dumps({"path": f"https://s3.amazonaws.com/{bucket}/a/"}),
        "destinationPath": "tools",
    }
    script = {"runCommand": ["sh hello.sh"], "workingDirectory": "tools"}
    steps = [
        {"action": "aws:downloadContent", "name": "fetch", "inputs": fetch},
        {"action": "aws:runShellScript", "name": "script", "inputs": script},
    ]
    content = {"schemaVersion": "2.2", "mainSteps": steps}
    ssm.create_document(Name=name, DocumentType="Command", Content=json.dumps(content))
    sent = ssm.send_command(DocumentName=name, InstanceIds=[guest.id])["Command"]["CommandId"]
    assert ended(ssm, sent, guest.id)["Status"] == "Success"
    answer = ssm.get_command_invocation(CommandId=sent, InstanceId=guest.id, PluginName="script")
    assert answer["StandardOutputContent"] == "hello\n"


def test_parameters_have_the_limits_of_their_tier_and_of_amis(ssm, source_ami) -> None:
    name = f"kiln-{time.time_ns()}"
    with pytest.raises(ClientError, match="4096"):
        ssm.put_parameter(Name=name, Type="String", Value="a" * 4097)
    ssm.put_parameter(Name=name, Type="String", Value="a" * 4097, Tier="Advanced")
    image: dict[str, Any] = {"Name": f"{name}-ami", "Type": "String", "DataType": "aws:ec2:image"}
    with pytest.raises(ClientError, match="not the id of an AMI"):
        ssm.put_parameter(**image, Value="ami-1")
    # AWS looks after its answer whether there is such an AMI.
    ssm.put_parameter(**image, Value="ami-0123456789abcdef0")
    with pytest.raises(ClientError, match="ParameterNotFound"):
        ssm.get_parameter(Name=image["Name"])
    ssm.put_parameter(**image, Value=source_ami)
    ssm.put_parameter(**image, Value="ami-0123456789abcdef0", Overwrite=True)
    assert ssm.get_parameter(Name=image["Name"])["Parameter"]["Value"] == source_ami
