"""Systems Manager of the lab: what a document does, and how commands are counted."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lab.moto.ssm import agents, commands, documents, of_aws
from lab.moto.ssm.commands import Command, Invocation, Plugin
from lab.moto.ssm.documents import Step
from lab.moto.ssm.errors import SsmError

STEP = Step("shell", "true", "", 10, runs=True, on_failure="", always=False)


def shell(**inputs: Any) -> dict[str, Any]:
    return {"action": "aws:runShellScript", "name": "shell", "inputs": inputs}


def test_a_list_of_commands_becomes_the_lines_of_the_script() -> None:
    content = of_aws.DOCUMENTS["AWS-RunShellScript"]
    parameters = documents.values(content, {"commands": ["cd /tmp", "ls"]})
    (step,) = documents.steps(content, parameters, "Linux")
    assert (step.script, step.folder, step.timeout) == ("cd /tmp\nls", "", 3600)
    assert step.name == "aws:runShellScript"


def test_parameters_stand_inside_lines_and_beside_them() -> None:
    content = {
        "schemaVersion": "2.2",
        "parameters": {"word": {"type": "String"}, "more": {"type": "StringList", "default": []}},
        "mainSteps": [shell(runCommand=["echo {{ word }} {{unknown}}", "{{ more }}"])],
    }
    parameters = documents.values(content, {"word": ["a"], "more": ["b", "c"]})
    (step,) = documents.steps(content, parameters, "Linux")
    assert step.script == "echo a {{unknown}}\nb\nc"


@pytest.mark.parametrize(("platform", "runs"), [("Linux", True), ("Windows", False)])
def test_a_precondition_chooses_the_platform(platform: str, runs: bool) -> None:
    precondition = {"StringEquals": ["platformType", platform]}
    content = {
        "schemaVersion": "2.2",
        "mainSteps": [shell(runCommand=["true"]) | {"precondition": precondition}],
    }
    (step,) = documents.steps(content, {}, "Linux")
    assert step.runs is runs


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "commands is required"),
        ({"commands": []}, "too few items"),
        ({"commands": ["a"], "colour": ["red"]}, "colour"),
        ({"commands": ["a"], "workingDirectory": ["/a", "/b"]}, "one value"),
        ({"commands": ["a"], "executionTimeout": ["soon"]}, "pattern"),
        ({"commands": ["a"], "executionTimeout": ["172801"]}, "pattern"),
    ],
)
def test_parameters_that_a_document_does_not_take_are_refused(
    asked: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(SsmError, match=f"InvalidParameters: .*{message}"):
        documents.values(of_aws.DOCUMENTS["AWS-RunShellScript"], asked)


def test_a_step_that_the_lab_does_not_run_is_refused() -> None:
    content = {"schemaVersion": "2.2", "mainSteps": [{"action": "aws:runDocker", "name": "d"}]}
    with pytest.raises(SsmError, match="aws:runDocker is not implemented"):
        documents.steps(content, {}, "Linux")


class Fleet:
    """A command to several instances, and where it was sent so far."""

    def __init__(self, size: int, concurrency: int, errors: int) -> None:
        self.sent: list[str] = []
        self.command = Command(
            request={},
            document="AWS-RunShellScript",
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
    assert fleet.command.status() == ("InProgress", "InProgress")
    fleet.end("i-2", "Success")
    assert fleet.command.status() == ("Success", "Success")


@pytest.mark.parametrize(("errors", "reached"), [(0, 1), (1, 2), (2, 3)])
def test_one_failure_more_than_max_errors_stops_the_sending(errors: int, reached: int) -> None:
    fleet = Fleet(4, concurrency=1, errors=errors)
    for number in range(reached):
        fleet.end(f"i-{number}", "Failed")
    assert len(fleet.sent) == reached
    assert fleet.states()[reached:] == [("Cancelled", "Terminated")] * (4 - reached)
    assert fleet.command.status() == ("Failed", "Failed")


def test_failures_within_max_errors_leave_a_command_incomplete() -> None:
    fleet = Fleet(2, concurrency=2, errors=1)
    fleet.end("i-0", "Failed")
    fleet.end("i-1", "Success")
    assert fleet.command.status()[1] == "Incomplete"


def test_what_was_not_taken_in_time_is_not_sent_any_more() -> None:
    fleet = Fleet(2, concurrency=1, errors=5)
    fleet.command.lifetime = -1.0
    fleet.go_on()
    assert fleet.states() == [("TimedOut", "DeliveryTimedOut")] * 2


def test_an_instance_that_cannot_be_reached_is_undeliverable() -> None:
    fleet = Fleet(1, concurrency=1, errors=0)
    fleet.command.invocations[0] = Invocation("i-9", [Plugin(STEP)], 0.0)
    commands.advance(fleet.command, lambda *_: False)
    assert fleet.states() == [("Failed", "Undeliverable")]


@pytest.mark.parametrize(
    ("text", "of", "count"), [("10", 50, 10), ("10%", 50, 5), ("10%", 3, 1), ("100%", 7, 7)]
)
def test_concurrency_is_a_number_or_a_share_of_the_targets(text: str, of: int, count: int) -> None:
    assert commands.number(text, of, "MaxConcurrency") == count


@pytest.mark.parametrize("text", ["0", "many", "-1", "5%%"])
def test_a_concurrency_that_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(SsmError, match="MaxConcurrency"):
        commands.number(text, 10, "MaxConcurrency")


def test_a_long_output_is_cut_and_says_so() -> None:
    assert commands.cut("a" * 24_000, 24_000) == "a" * 24_000
    shown = commands.cut("a" * 24_001, 24_000)
    assert (len(shown), shown[-21:]) == (24_000, "a--output truncated--")


def test_times_are_written_as_iso_8601_has_them() -> None:
    assert commands.elapsed(3600.271) == "PT1H0.271S"
    assert commands.elapsed(65.5) == "PT1M5.5S"


def test_an_agent_that_does_not_ask_any_more_is_lost() -> None:
    known = agents.Agents()
    known.hear("i-1", "us-east-1", "role", {"PlatformType": "Linux", "Secret": "x"})
    agent = known.find("i-1")
    assert agent
    shown = agents.described(agent)
    assert (shown["PingStatus"], shown["PlatformType"]) == ("Online", "Linux")
    assert "Secret" not in shown
    agent.heard -= agents.LOST
    assert agents.described(agent)["PingStatus"] == "ConnectionLost"
    agent.messages.put({"Kind": "send"})
    assert known.wait("i-1", held=0) == [{"Kind": "send"}]
    assert agents.described(agent)["PingStatus"] == "Online"


@pytest.mark.parametrize(
    "step",
    [
        {"action": "aws:runPowerShellScript", "name": "a"},
        {"action": "aws:downloadContent", "name": "a", "inputs": {"sourceType": "GitHub"}},
        {"action": "aws:runDockerAction", "name": "a"},
    ],
)
def test_a_step_that_would_do_nothing_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises(SsmError, match="not implemented"):
        documents.steps({"schemaVersion": "2.2", "mainSteps": [step]}, {}, "Linux")


def test_a_message_goes_to_the_agent_that_has_restarted_and_not_to_its_former_question() -> None:
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
