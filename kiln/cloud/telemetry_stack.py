"""The stack of `stack.deploy` in an account: what it finds there, and how it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.base.errors import operation_failed
from kiln.cloud import aws, stacks
from kiln.cloud.target import Target

# The template's parameter → its log group's output.
_GROUPS = {"CreateEventLogGroup": "EventLogGroup", "CreateDcgmLogGroup": "DcgmLogGroup"}


def groups_that_are_there(target: Target, name: str, groups: Mapping[str, str]) -> dict[str, str]:
    """The parameters by which a new stack leaves alone the log groups that an agent has made.

    `groups` are the groups' names by the keys of their outputs. An update keeps what the creation
    has decided: nothing.
    """
    present = stacks.find_stack(target, name)
    if present and not stacks.is_dead(present):
        return {}
    return {
        parameter: "false" for parameter, key in _GROUPS.items() if _exists(target, groups[key])
    }


def _exists(target: Target, group: str) -> bool:
    with aws.explained(f"the log group {group} could not be looked up"):
        groups = aws.logs(target).describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    return any(item["logGroupName"] == group for item in groups)


def stack_state(target: Target, name: str) -> dict[str, Any]:
    """Status, outputs and alarms of a stack; an alarm over a fleet with the instances it is about.

    Raises KilnError (exit status 1) if there is no such stack.
    """
    present = stacks.find_stack(target, name)
    if present is None:
        raise operation_failed(
            f"there is no stack {name} in {target.region}",
            hint=f"./invoke stack.deploy --name {name}",
        )
    with aws.explained(f"the alarms of {name} could not be looked up"):
        alarms = _alarms(aws.cloudwatch(target), name)
    return {
        "stack": name,
        "status": present["StackStatus"],
        "outputs": stacks.stack_outputs(present),
        "alarms": alarms,
    }


def _alarms(client: Any, name: str) -> list[dict[str, Any]]:
    alarms = []
    pages = client.get_paginator("describe_alarms").paginate(
        AlarmNamePrefix=f"{name}-", AlarmTypes=["MetricAlarm", "CompositeAlarm"]
    )
    for page in pages:
        for alarm in (*page["MetricAlarms"], *page["CompositeAlarms"]):
            shown = {
                "name": alarm["AlarmName"],
                "state": alarm["StateValue"],
                "reason": alarm.get("StateReason", ""),
            }
            if alarm["StateValue"] == "ALARM" and _is_query(alarm):
                shown["about"] = _contributors(client, alarm["AlarmName"])
            alarms.append(shown)
    return sorted(alarms, key=lambda entry: (entry["state"] != "ALARM", entry["name"]))


def _is_query(alarm: Mapping[str, Any]) -> bool:
    return any("GROUP BY" in metric.get("Expression", "") for metric in alarm.get("Metrics", []))


def _contributors(client: Any, alarm: str) -> list[dict[str, str]]:
    """What breaches, which the alarm's own message does not say."""
    request, contributors = {"AlarmName": alarm}, list[dict[str, str]]()
    while True:
        answer = client.describe_alarm_contributors(**request)
        contributors += [
            dict(each["ContributorAttributes"]) for each in answer["AlarmContributors"]
        ]
        if not answer.get("NextToken"):
            return contributors
        request["NextToken"] = answer["NextToken"]


def remove_logs(target: Target, groups: Mapping[str, str]) -> list[str]:
    """Delete the log groups of a stack's outputs; those that were there."""
    removed = []
    client = aws.logs(target)
    for key in _GROUPS.values():
        group = groups.get(key)
        if group and _exists(target, group):
            with aws.explained(f"the log group {group} could not be deleted"):
                client.delete_log_group(logGroupName=group)
            removed.append(group)
    return removed
