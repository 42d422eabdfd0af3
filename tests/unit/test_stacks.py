"""Stacks of CloudFormation in states that the lab's does not stay in. No lab is started."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.cloud import aws, stacks, telemetry_stack
from kiln.cloud.target import Target

AWS = Target("a test", "eu-central-1", account="123456789012")
OLD = "CREATE_COMPLETE"


class Stack:
    """CloudFormation with one stack: its states, one for each look and the last for good; the first
    event of a deletion is there after `late` looks at the events."""

    def __init__(self, *states: str, late: int = 1) -> None:
        self.states, self.late = list(states), late
        self.deleted = False

    def describe_stacks(self, **asked: Any) -> Any:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"Stacks": [{"StackId": "an id", "StackStatus": state}]}

    def describe_stack_events(self, **asked: Any) -> Any:
        self.late -= 1
        shown = {"ResourceType": "AWS::CloudFormation::Stack", "LogicalResourceId": "ml"}
        events = [{"EventId": "1", "ResourceStatus": OLD}]
        if self.late < 0:
            events.insert(0, {"EventId": "2", "ResourceStatus": "DELETE_IN_PROGRESS"})
        return {"StackEvents": [{**shown, **event} for event in events]}

    def delete_stack(self, **asked: Any) -> None:
        self.deleted = True

    def get_paginator(self, name: str) -> Any:
        return self

    def paginate(self, **asked: Any) -> Any:
        return [self.describe_stack_events()]


class Logs:
    """CloudWatch Logs with one group."""

    def describe_log_groups(self, **asked: Any) -> Any:
        return {"logGroups": [{"logGroupName": "/an/agents"}]}


def use(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> Stack:
    monkeypatch.setattr(aws, "cloudformation", lambda target: stack)
    monkeypatch.setattr(aws, "logs", lambda target: Logs())
    return stack


def removed() -> bool:
    return stacks.remove_stack(AWS, "ml", lambda line: None, pause=0)


def test_a_stack_that_still_has_its_old_state_is_not_deleted_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = use(monkeypatch, Stack(OLD, OLD, OLD, "DELETE_IN_PROGRESS", "DELETE_COMPLETE", late=3))
    assert removed()
    assert stack.states == ["DELETE_COMPLETE"]


# https://github.com/boto/botocore/issues/2590
def test_a_stack_that_goes_back_to_its_old_state_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, Stack("UPDATE_COMPLETE", "DELETE_IN_PROGRESS", "UPDATE_COMPLETE"))
    with pytest.raises(KilnError, match="the stack is UPDATE_COMPLETE"):
        removed()


def test_a_plan_removes_nothing_of_a_stack_that_could_not_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = use(monkeypatch, Stack("ROLLBACK_COMPLETE", "DELETE_COMPLETE"))
    lines: list[str] = []
    assert stacks.deploy_stack(AWS, "ml", "{}", {}, lines.append, plan=True, pause=0) == {}
    assert lines == ["ml could not be created earlier: its rest would be removed, and it created"]
    assert not stack.deleted


@pytest.mark.parametrize(
    ("state", "given"), [("ROLLBACK_COMPLETE", {"CreateEventLogGroup": "false"}), (OLD, {})]
)
def test_a_stack_that_is_made_anew_leaves_an_agents_log_group_alone(
    state: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Stack(state))
    groups = {"EventLogGroup": "/an/agents", "DcgmLogGroup": "/none"}
    assert telemetry_stack.groups_that_are_there(AWS, "ml", groups) == given


class Alarms:
    """CloudWatch with one alarm over a fleet, which gives its instances one at a time."""

    meters = ("i-0aaaaaaaaaaaaaaaa", "i-0bbbbbbbbbbbbbbbb")

    def get_paginator(self, name: str) -> Any:
        return self

    def paginate(self, **asked: Any) -> Any:
        metric = {"Expression": 'SELECT MAX(x) FROM y GROUP BY "InstanceId"'}
        alarm = {"AlarmName": "ml-hot", "StateValue": "ALARM", "Metrics": [metric]}
        return [{"MetricAlarms": [alarm], "CompositeAlarms": []}]

    def describe_alarm_contributors(self, **asked: Any) -> Any:
        number = int(asked.get("NextToken", 0))
        shown = {"ContributorAttributes": {"InstanceId": self.meters[number]}}
        more = {"NextToken": "1"} if number == 0 else {}
        return {"AlarmContributors": [shown], **more}


def test_an_alarm_names_all_instances_that_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Stack(OLD))
    monkeypatch.setattr(aws, "cloudwatch", lambda target: Alarms())
    (alarm,) = telemetry_stack.stack_state(AWS, "ml")["alarms"]
    assert [each["InstanceId"] for each in alarm["about"]] == list(Alarms.meters)
