"""Systems Manager of the lab: who may call, what a document does, how commands are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import requests
from moto.ssm.exceptions import SSMException

from lab.moto.ssm import commands, documents
from lab.moto.ssm.commands import Command, Invocation, Plugin
from lab.moto.ssm.documents import Step

pytestmark = pytest.mark.slow

STEP = Step("shell", "true", 10, runs=True, on_failure="")


DOCUMENT = {
    "schemaVersion": "2.2",
    "parameters": {
        "word": {"type": "String", "allowedPattern": "[a-z]+"},
        "list": {"type": "StringList", "minItems": 1, "default": ["a"]},
    },
}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "word is required"),
        ({"word": ["a"], "list": []}, "too few items"),
        ({"word": ["a"], "color": ["red"]}, "color"),
        ({"word": ["a", "b"]}, "one value"),
        ({"word": ["NO"]}, "pattern"),
    ],
)
def test_parameters_that_a_document_does_not_take_are_refused(
    asked: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(SSMException, match=f"InvalidParameters: .*{message}"):
        documents.values(DOCUMENT, asked)


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ({"action": "aws:runDocker"}, "aws:runDocker"),
        ({"action": "aws:runShellScript", "inputs": {"workingDirectory": "/"}}, "workingDirectory"),
        ({"action": "aws:downloadContent", "inputs": {"sourceType": "GitHub"}}, "GitHub"),
    ],
)
def test_steps_that_the_lab_lacks_are_refused_by_name(step: dict[str, Any], named: str) -> None:
    with pytest.raises(SSMException, match=f"UnsupportedOperation: .*{named}"):
        documents.steps({"schemaVersion": "2.2", "mainSteps": [step]}, {})


class Fleet:
    """A command to several instances, and where it was sent so far."""

    def __init__(self, size: int, concurrency: int, errors: int) -> None:
        self.sent: list[str] = []
        self.command = Command(
            request={},
            document="mine",
            parameters={},
            invocations=[Invocation(f"i-{n}", [Plugin(STEP)], 0.0) for n in range(size)],
            concurrency=concurrency,
            errors=errors,
            lifetime=3600,
        )
        self.go_on()

    def go_on(self) -> None:
        commands.advance(self.command, lambda invocation, _: not self.sent.append(invocation))

    def end(self, instance_id: str, status: str) -> None:
        result = {"Status": status, "Details": status}
        commands.reply(self.command, instance_id, result)
        self.go_on()

    def states(self) -> list[tuple[str, str]]:
        return [(invocation.status, invocation.details) for invocation in self.command.invocations]


def test_so_many_run_at_once_as_max_concurrency_says() -> None:
    fleet = Fleet(3, concurrency=2, errors=0)
    assert fleet.sent == ["i-0", "i-1"]
    fleet.end("i-1", "Success")
    assert fleet.sent == ["i-0", "i-1", "i-2"]
    fleet.end("i-0", "Success")
    fleet.end("i-2", "Success")
    assert fleet.states() == [("Success", "Success")] * 3


@pytest.mark.parametrize(("errors", "reached"), [(0, 1), (1, 2), (2, 3)])
def test_one_failure_more_than_max_errors_stops_the_sending(errors: int, reached: int) -> None:
    fleet = Fleet(4, concurrency=1, errors=errors)
    for number in range(reached):
        fleet.end(f"i-{number}", "Failed")
    assert len(fleet.sent) == reached
    assert fleet.states()[reached:] == [("Cancelled", "Terminated")] * (4 - reached)


def test_a_command_belongs_to_its_region(
    client: Callable[..., Any], refused: Callable[..., tuple[str, str]]
) -> None:
    sent = client("ssm").send_command(
        DocumentName="AWS-RunShellScript",
        Parameters={"commands": ["true"]},
        Targets=[{"Key": "InstanceIds", "Values": ["i-0123456789abcdef0"]}],
    )["Command"]
    named = {"CommandId": sent["CommandId"]}
    assert client("ssm").list_command_invocations(**named)["CommandInvocations"] == []
    other = client("ssm", "us-west-2").list_command_invocations
    assert refused(other, **named)[0] == "InvalidCommandId"


@pytest.mark.parametrize(
    ("service", "target"),
    [
        ("ssm", "AmazonSSM.UpdateInstanceInformation"),
        ("ec2messages", "EC2WindowsMessageDeliveryService.GetMessages"),
    ],
)
def test_agents_call_with_an_instance_token(
    client: Callable[..., Any], service: str, target: str
) -> None:
    scope = f"AWS4-HMAC-SHA256 Credential=K/20260101/us-east-1/{service}/aws4_request, Signature=-"
    answer = requests.post(
        client("ssm").meta.endpoint_url,
        headers={
            "Authorization": scope,
            "X-Amz-Target": target,
            "X-Amz-Security-Token": "none",
            "Content-Type": "application/x-amz-json-1.1",
        },
        data=json.dumps({"InstanceId": "i-0123456789abcdef0"}),
        timeout=30,
    )
    assert (answer.status_code, answer.json()["__type"]) == (400, "AccessDeniedException")
