"""CloudFormation stacks, which moto plays: created, changed, planned, removed; their alarms."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import WaiterError
from moto import mock_aws

from kiln.base.errors import KilnError
from kiln.cloud import aws, stacks
from kiln.cloud.target import Target

# moto's CloudFormation imports its API Gateway, which reads OpenAPI with this.
for part in ("", ".validation", ".validation.exceptions"):
    sys.modules.setdefault(f"openapi_spec_validator{part}", MagicMock())

AWS = Target("a test", "eu-central-1", account="123456789012")


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setattr(stacks, "_WAIT", {"Delay": 0, "MaxAttempts": 3})
    with mock_aws():
        aws.forget_clients()
        yield
    aws.forget_clients()


def template(*topics: str, **parameters: str) -> str:
    """A template of topics, and of parameters with their defaults."""
    data = {
        "Parameters": {k: {"Type": "String", "Default": v} for k, v in parameters.items()},
        "Resources": {topic: {"Type": "AWS::SNS::Topic"} for topic in topics},
    }
    return json.dumps(data)


def deploy(text: str, *, plan: bool = False, **parameters: str) -> tuple[dict[str, str], list[str]]:
    lines: list[str] = []
    return stacks.deploy_stack(AWS, "ml", text, parameters, lines.append, plan=plan), lines


def parameters() -> dict[str, str]:
    """The parameters that the stack has. moto's has no outputs."""
    entries = stacks.find_stack(AWS, "ml")["Parameters"]
    return {entry["ParameterKey"]: entry["ParameterValue"] for entry in entries}


def test_stack_is_created_with_its_events() -> None:
    _, lines = deploy(template("First", Team="a"), Team="b")
    assert parameters() == {"Team": "b"}
    assert any(line.startswith("CREATE_COMPLETE") for line in lines)


def test_update_names_changes_and_keeps_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(template("First", Team="a", Old="o", Gone="x"), Team="b")
    client, sent = aws.client("cloudformation", AWS), dict[str, Any]()
    create = client.create_change_set
    monkeypatch.setattr(client, "create_change_set", lambda **k: create(**(sent.update(k) or k)))
    _, lines = deploy(template("First", "Second", Team="c", Old="o", New="y"), New="z", Old="p")
    assert "Add  AWS::SNS::Topic  Second" in lines
    assert sent["Parameters"] == [
        {"ParameterKey": "New", "ParameterValue": "z"},
        {"ParameterKey": "Old", "ParameterValue": "p"},
        {"ParameterKey": "Team", "UsePreviousValue": True},
    ]
    assert parameters().items() >= {"Team": "b", "New": "z"}.items()


def test_a_plan_changes_nothing() -> None:
    assert deploy(template("First"), plan=True) == (
        {},
        ["there is no stack ml: it would be created"],
    )
    assert stacks.find_stack(AWS, "ml") is None
    deploy(template("First"))
    _, lines = deploy(template("First", "Second"), plan=True)
    assert "Add  AWS::SNS::Topic  Second" in lines
    assert len(aws.client("sns", AWS).list_topics()["Topics"]) == 1
    assert aws.client("cloudformation", AWS).list_change_sets(StackName="ml")["Summaries"][1:] == []


def test_a_stack_is_removed_once() -> None:
    deploy(template("First"))
    assert stacks.remove_stack(AWS, "ml", lambda line: None)
    assert not stacks.remove_stack(AWS, "ml", lambda line: None)
    assert aws.client("sns", AWS).list_topics()["Topics"] == []


class Refusing:
    """A waiter that ends with an answer of CloudFormation."""

    def __init__(self, **answer: str) -> None:
        self.answer = answer

    def wait(self, **asked: Any) -> None:
        raise WaiterError("waiter", "a failure state", self.answer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("No updates are to be performed.", None),
        ("Resource First is odd", "could not be deployed: Resource First is odd"),
    ],
)
def test_failed_change_set_changes_nothing(
    reason: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(template("First"))
    client = aws.client("cloudformation", AWS)
    monkeypatch.setattr(client, "get_waiter", lambda name: Refusing(StatusReason=reason))
    if message:
        with pytest.raises(KilnError, match=message):
            deploy(template("First", "Second"))
    else:
        assert deploy(template("First"))[1] == ["ml is as the template says: nothing to change"]
    assert len(aws.client("sns", AWS).list_topics()["Topics"]) == 1


def test_failed_stack_names_its_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(template("First"))
    failed = {
        "ResourceType": "AWS::SNS::Topic",
        "ResourceStatus": "DELETE_FAILED",
        "LogicalResourceId": "First",
        "ResourceStatusReason": "it is in use",
    }
    cancelled = {
        **failed,
        "LogicalResourceId": "Second",
        "ResourceStatusReason": "Resource update cancelled",
    }
    # Before the deletion, twice before it begins, and then.
    looks: list[list[Any]] = [[], [], [], [failed, cancelled]]
    monkeypatch.setattr(
        stacks, "_events", lambda client, stack: looks.pop(0) if looks[1:] else looks[0]
    )
    client = aws.client("cloudformation", AWS)
    waiter = client.get_waiter

    def wait_for(name: str) -> Any:
        assert len(looks) == 1, "the stack is in its old state"
        return waiter(name)

    monkeypatch.setattr(client, "get_waiter", wait_for)
    monkeypatch.setattr(client, "delete_stack", lambda **asked: None)
    lines: list[str] = []
    with pytest.raises(KilnError, match=r"gave up:\n  First: it is in use$"):
        stacks.remove_stack(AWS, "ml", lines.append)
    assert lines == [
        "DELETE_FAILED  AWS::SNS::Topic  First  it is in use",
        "DELETE_FAILED  AWS::SNS::Topic  Second  Resource update cancelled",
    ]


class Alarms:
    """CloudWatch with one alarm over a fleet, which gives its instances one at a time."""

    instances = ("i-0aaaaaaaaaaaaaaaa", "i-0bbbbbbbbbbbbbbbb")

    def describe_alarm_contributors(self, **asked: Any) -> Any:
        number = int(asked.get("NextToken", 0))
        shown = {"ContributorAttributes": {"InstanceId": self.instances[number]}}
        return {"AlarmContributors": [shown], **({} if number else {"NextToken": "1"})}


def test_alarm_names_all_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    client = aws.client("cloudwatch", AWS)
    query = {"Id": "q", "Expression": 'SELECT MAX(x) FROM "y" GROUP BY InstanceId', "Period": 60}
    shared = {"EvaluationPeriods": 1, "ComparisonOperator": "GreaterThanThreshold", "Threshold": 1}
    client.put_metric_alarm(AlarmName="ml-hot", Metrics=[query], **shared)
    client.put_metric_alarm(AlarmName="ml-b", MetricName="x", Namespace="y", **shared)
    client.set_alarm_state(AlarmName="ml-hot", StateValue="ALARM", StateReason="too hot")
    monkeypatch.setattr(
        client, "describe_alarm_contributors", Alarms().describe_alarm_contributors, raising=False
    )
    hot, other = stacks.stack_alarms(AWS, "ml")
    assert [each["InstanceId"] for each in hot["about"]] == list(Alarms.instances)
    assert other["name"] == "ml-b"
