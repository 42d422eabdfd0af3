"""CloudFormation stacks, which moto plays: created, changed, planned, removed; their alarms."""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import WaiterError

from kiln.base.errors import KilnError
from kiln.cloud import aws, stacks
from kiln.cloud.target import Target
from tests.unit import caches

# moto's CloudFormation imports its API Gateway, which reads OpenAPI with this.
for part in ("", ".validation", ".validation.exceptions"):
    sys.modules.setdefault(f"openapi_spec_validator{part}", MagicMock())

AWS = Target("a test", "eu-central-1", account="123456789012")


@pytest.fixture(autouse=True)
def played(ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_WAIT", {"Delay": 0, "MaxAttempts": 3})
    caches.forget_clients()


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


def test_stack_is_removed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(template("First"))
    failed = {"ResourceStatus": "DELETE_FAILED", "LogicalResourceId": "First"}
    failed |= {"ResourceType": "AWS::SNS::Topic", "ResourceStatusReason": "it is in use"}
    with monkeypatch.context() as patch:
        # Before the deletion, before it begins, and then.
        looks: list[list[Any]] = [[], [], [failed]]
        patch.setattr(stacks, "_events", lambda *_: looks.pop(0) if looks[1:] else looks[0])
        patch.setattr(aws.client("cloudformation", AWS), "delete_stack", lambda **asked: None)
        with pytest.raises(KilnError, match=r"gave up:\n  First: it is in use$"):
            stacks.remove_stack(AWS, "ml", lambda line: None)
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
