"""Session Manager: SSH to guests and ports of theirs by AWS's own plugin, and who may.

    PATH=$PATH:/folder/of/session-manager-plugin .venv/bin/python -m pytest \\
        tests/lab/test_session_manager.py
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aws_front
import boto3
import pytest
import yaml
from botocore.exceptions import ClientError
from conftest import Guest, launching, users_environment
from test_ssm import TRUST, ping, until

from devel.campaign.testbed import bare_checkout
from kiln.cloud import iam as documented
from kiln.cloud import session
from lab import control
from lab.target import LabTarget

FORWARDING = "AWS-StartPortForwardingSession"
RUN = {"Key": "kiln:run-id", "Value": "20261123T000000Z-aaaa"}


@pytest.fixture(scope="module")
def ssm(client: Callable[[str], Any]) -> Any:
    return client("ssm")


@pytest.fixture(scope="module")
def profile(client: Callable[[str], Any]) -> Iterator[str]:
    """An instance profile whose role has what AWS's documentation attaches for the agent."""
    made, name = client("iam"), f"sessions-{time.time_ns()}"
    core = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
    made.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    made.attach_role_policy(RoleName=name, PolicyArn=core)
    made.create_instance_profile(InstanceProfileName=name)
    made.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    yield name
    made.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    made.delete_instance_profile(InstanceProfileName=name)
    made.detach_role_policy(RoleName=name, PolicyArn=core)
    made.delete_role(RoleName=name)


@pytest.fixture(scope="module")
def guest(ec2: Any, key: Any, source_ami: str, profile: str, ssm: Any) -> Iterator[Guest]:
    """A guest of a run, whose agent is online."""
    with launching(ec2, key, source_ami) as launch:
        made = launch(
            IamInstanceProfile={"Name": profile},
            TagSpecifications=[{"ResourceType": "instance", "Tags": [RUN]}],
        )
        until(lambda: ping(ssm, made.id) == "Online", "the agent does not register")
        yield made


@pytest.fixture
def plugin() -> str:
    found = shutil.which(session.PLUGIN)
    if not found:
        pytest.skip("session-manager-plugin is not on PATH")
    return found


def started(ssm: Any, guest: Guest, port: int = 22, local: int = 0) -> dict[str, Any]:
    asked = {
        "Target": guest.id,
        "DocumentName": FORWARDING,
        "Parameters": {"portNumber": [str(port)], "localPortNumber": [str(local)]},
    }
    return {"asked": asked, **ssm.start_session(**asked)}


def states(ssm: Any, guest: Guest, state: str) -> list[str]:
    filters = [{"key": "Target", "value": guest.id}]
    return [
        session["SessionId"]
        for session in ssm.describe_sessions(State=state, Filters=filters)["Sessions"]
    ]


def by_session(lab: Any, guest: Guest, folder: Path, command: str, given: bytes = b"") -> bytes:
    """What a command prints, over ssh as `./invoke verify` runs it."""
    target = LabTarget("a test", endpoint=lab.endpoint)
    done = subprocess.run(
        [
            *("ssh", "-i", str(guest.key), "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"),
            *("-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
            *("-o", f"ProxyCommand={session.proxy_command(target, folder)}"),
            *(f"{guest.user}@{guest.id}", command),
        ],
        input=given,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_ssh_by_session_carries_commands_and_files(
    lab: Any, ssm: Any, guest: Guest, plugin: str, tmp_path: Path
) -> None:
    # The guest sees its agent's connection, and not one from this machine.
    seen = by_session(lab, guest, tmp_path, "echo $SSH_CONNECTION; hostname")
    assert seen.startswith(b"127.0.0.1 ")
    assert (tmp_path / "session.json").stat().st_mode & 0o777 == 0o600
    data = os.urandom(300_000)
    back = by_session(lab, guest, tmp_path, "tee /tmp/sent", data)
    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()
    until(lambda: not states(ssm, guest, "Active"), "a session outlives its ssh")


def test_a_forwarded_port_takes_several_connections_until_it_is_terminated(
    ssm: Any, guest: Guest, plugin: str, lab: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = free.getsockname()[1]
    opened = started(ssm, guest, local=local)
    answer = {name: opened[name] for name in ("SessionId", "TokenValue", "StreamUrl")}
    words = [json.dumps(answer), "us-east-1", "StartSession", "", json.dumps(opened["asked"])]
    process = subprocess.Popen(
        [plugin, *words, lab.endpoint],
        env={**os.environ, **control.environment(lab)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        banners = []
        with (
            until(lambda: _connected(local), "the port does not open") as connection,
            until(lambda: _connected(local), "no second connection") as other,
        ):
            banners = [made.recv(4) for made in (other, connection)]
        assert banners == [b"SSH-", b"SSH-"]
        assert states(ssm, guest, "Active") == [opened["SessionId"]]
        ssm.terminate_session(SessionId=opened["SessionId"])
        assert process.wait(60) == 0
        assert opened["SessionId"] in states(ssm, guest, "History")
    finally:
        process.kill()


def _connected(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=60)
    except OSError:
        return None


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as error:
        call()
    return str(error.value.response["Error"]["Code"])


def test_what_has_no_agent_that_may_open_channels_is_not_connected(
    ssm: Any, guest: Guest, client: Callable[[str], Any], profile: str
) -> None:
    other = Guest("i-0123456789abcdef0", "", "", guest.key)
    assert refused(lambda: started(ssm, other)) == "TargetNotConnected"
    deny = {"Effect": "Deny", "Action": "ssmmessages:OpenDataChannel", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": deny})
    made = client("iam")
    made.put_role_policy(RoleName=profile, PolicyName="closed", PolicyDocument=document)
    assert refused(lambda: started(ssm, guest)) == "TargetNotConnected"
    made.delete_role_policy(RoleName=profile, PolicyName="closed")
    opened = started(ssm, guest)
    assert opened["StreamUrl"].startswith("ws://127.0.0.1:")
    ssm.terminate_session(SessionId=opened["SessionId"])
    assert "TokenValue" not in ssm.resume_session(SessionId=opened["SessionId"])


def test_the_documented_policy_reaches_instances_of_runs_and_ends_its_own_sessions(
    lab: Any, ec2: Any, ssm: Any, guest: Guest, client: Callable[[str], Any]
) -> None:
    made, name = client("iam"), f"builder-{time.time_ns()}"
    account = client("sts").get_caller_identity()["Account"]
    trust = json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": {
                "Effect": "Allow",
                "Principal": {"AWS": account},
                "Action": "sts:AssumeRole",
            },
        }
    )
    made.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
    whole = documented.policy("settings")
    wanted = {"ReachItsOwnBySession", "ReachBySshOnly", "EndItsOwnSessionsAsRole"}
    kept = [statement for statement in whole["Statement"] if statement["Sid"] in wanted]
    policy = json.dumps({**whole, "Statement": kept})
    made.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=policy)
    try:
        given = client("sts").assume_role(
            RoleArn=f"arn:aws:iam::{account}:role/{name}", RoleSessionName="bake"
        )["Credentials"]
        builder = boto3.client(
            "ssm",
            endpoint_url=lab.endpoint,
            region_name="us-east-1",
            aws_access_key_id=given["AccessKeyId"],
            aws_secret_access_key=given["SecretAccessKey"],
            aws_session_token=given["SessionToken"],
        )
        opened = started(builder, guest)
        assert opened["SessionId"].startswith("bake-")
        others = started(ssm, guest)
        builder.resume_session(SessionId=opened["SessionId"])
        builder.terminate_session(SessionId=opened["SessionId"])
        assert opened["SessionId"] in states(ssm, guest, "History")
        for call in (builder.terminate_session, builder.resume_session):
            theirs = partial(call, SessionId=others["SessionId"])
            assert refused(theirs) == "AccessDeniedException"
        ec2.delete_tags(Resources=[guest.id], Tags=[RUN])
        assert refused(lambda: started(builder, guest)) == "AccessDeniedException"
        ssm.terminate_session(SessionId=others["SessionId"])
    finally:
        ec2.create_tags(Resources=[guest.id], Tags=[RUN])
        made.delete_role_policy(RoleName=name, PolicyName="p")
        made.delete_role(RoleName=name)


@pytest.mark.parametrize("target", ["lab", "aws"])
def test_a_row_that_asks_for_session_manager_is_baked_and_verified_by_it(
    lab: Any, ssm: Any, profile: str, plugin: str, tmp_path: Path, target: str
) -> None:
    """In the lab, and as in AWS, by AWS's names alone."""
    before = {
        session["SessionId"] for session in ssm.describe_sessions(State="History")["Sessions"]
    }
    checkout = bare_checkout(tmp_path)
    path = checkout / "amis.yaml"
    aws = {"ssh_interface": "session_manager", "iam_instance_profile": profile}
    row = {"distro": "al2", "stack": "al2_last", "aws": aws}
    matrix = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**matrix, "amis": [row]}, sort_keys=False))
    environment = users_environment(tmp_path / "home")
    environment["PATH"] = f"{Path(plugin).parent}:{environment['PATH']}"
    with aws_front.serve(lab, []) as way:
        if target == "aws":
            own = control.environment(lab)
            keys = {name: own[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
            environment |= {**way, **keys, "PKR_VAR_poll_seconds": "1"}
        done = subprocess.run(
            [str(checkout / "invoke"), "build", "--target", target, "--json"],
            cwd=checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    # Packer's and ours: no connection of this machine's to the guest.
    used = ssm.describe_sessions(State="History")["Sessions"]
    documents = {
        parameter["DocumentName"] for parameter in used if parameter["SessionId"] not in before
    }
    assert {FORWARDING, "AWS-StartSSHSession"} <= documents
    assert ssm.describe_sessions(State="Active")["Sessions"] == []
