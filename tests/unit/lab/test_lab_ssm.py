"""Systems Manager of the lab: what a document does, and how commands are counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lab.moto.ssm import agents, commands, documents
from lab.moto.ssm.commands import Command, Invocation, Plugin
from lab.moto.ssm.documents import Step
from lab.moto.ssm.errors import SsmError

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
    with pytest.raises(SsmError, match=f"InvalidParameters: .*{message}"):
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
    with pytest.raises(SsmError, match=f"UnsupportedOperation: .*{named}"):
        documents.steps({"schemaVersion": "2.2", "mainSteps": [step]}, {})


def test_only_targets_by_id_are_taken(client: Callable[..., Any], refused: Any) -> None:
    ssm = client("ssm")
    for call, more in (
        (ssm.send_command, {"DocumentName": "AWS-UpdateSSMAgent", "Targets": []}),
        (ssm.list_command_invocations, {"Filters": [{"key": "Status", "value": "Success"}]}),
        (ssm.get_command_invocation, {"CommandId": "0" * 36, "InstanceId": "i-0123456789abcdef0"}),
    ):
        assert "AMI Kiln lab" in refused(call, **more)[1]


class Fleet:
    """A command to several instances, and where it was sent so far."""

    def __init__(self, size: int, concurrency: int, errors: int) -> None:
        self.sent: list[str] = []
        self.command = Command(
            request={},
            document="mine",
            parameters={},
            region="us-east-1",
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


def test_what_was_not_taken_in_time_is_not_sent_any_more() -> None:
    fleet = Fleet(2, concurrency=1, errors=5)
    fleet.command.lifetime = -1.0
    fleet.go_on()
    assert fleet.states() == [("TimedOut", "DeliveryTimedOut")] * 2


def test_message_goes_to_the_restarted_agent() -> None:
    found = agents.Agents()
    found.hear("i-1", "us-east-1", "role", {})
    agent = found.find("i-1")
    assert agent
    with ThreadPoolExecutor(2) as pool:
        former = pool.submit(found.wait, "i-1", 0.5)
        while agent.questions < 1:
            time.sleep(0.001)
        again = pool.submit(found.wait, "i-1", 5)
        while agent.questions < 2:
            time.sleep(0.001)
        agent.messages.put({"Kind": "run"})
        assert again.result() == [{"Kind": "run"}]
        assert former.result() == []
