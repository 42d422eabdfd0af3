"""CloudFormation stacks: deployed by change set, followed by botocore's waiters."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kiln.base import yaml_files
from kiln.base.errors import operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.facts.tables import message

Say = Callable[[str], None]
# CloudFormation updates no such stack.
_DEAD = ("CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED")
# Seconds between two looks, and how many looks.
_WAIT = {"Delay": 5, "MaxAttempts": 720}


def deploy_stack(
    target: Target,
    name: str,
    template: str,
    parameters: Mapping[str, str],
    say: Say,
    *,
    tags: Mapping[str, str] | None = None,
    plan: bool = False,
) -> dict[str, str]:
    """Create a stack, or update it; return its outputs. A parameter not given keeps its value.

    An update's changes are printed before it begins; with `plan` nothing is done after that.
    CloudFormation removes a stack that it cannot create.
    """
    from botocore.exceptions import WaiterError

    present = find_stack(target, name)
    if present and present["StackStatus"] in _DEAD:
        raise operation_failed(
            f"the stack {name} could not be created before: it is {present['StackStatus']}",
            hint="delete it (stack.delete, or deploy.codebuild --delete), then deploy again",
        )
    if plan and not present:
        say(f"there is no stack {name}: it would be created")
        return {}
    client = aws.client("cloudformation", target)
    which = {"StackName": name, "ChangeSetName": f"kiln-{uuid.uuid4().hex[:12]}"}
    more: dict[str, Any] = {} if present else {"OnStackFailure": "DELETE"}
    if tags:  # an empty list would take away those that the stack has
        more["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    with aws.explained(f"the stack {name} could not be deployed"):
        client.create_change_set(
            **which,
            **more,
            ChangeSetType="UPDATE" if present else "CREATE",
            TemplateBody=template,
            Parameters=_parameters(template, parameters, present),
            Capabilities=["CAPABILITY_IAM"],
        )
        try:
            client.get_waiter("change_set_create_complete").wait(**which, WaiterConfig=_WAIT)
        except WaiterError as error:
            client.delete_change_set(**which)
            if not present:  # it leaves a stack without resources
                client.delete_stack(StackName=name)
            reason = error.last_response.get("StatusReason", str(error))
            if message("cloudformation", "no_changes").search(reason):
                say(f"{name} is as the template says: nothing to change")
                return stack_outputs(present)
            raise operation_failed(f"the stack {name} could not be deployed: {reason}") from None
        if present:
            key = "Changes[].ResourceChange"
            for change in aws.paginated(client, "describe_change_set", key, **which):
                say(_change_text(change))
        if plan:
            client.delete_change_set(**which)
            return stack_outputs(present)
        stack_id = client.describe_stacks(StackName=name)["Stacks"][0]["StackId"]
        told = len(_events(client, stack_id))
        client.execute_change_set(**which)
        waiter = "stack_update_complete" if present else "stack_create_complete"
        _follow(client, waiter, stack_id, told, say)
    return stack_outputs(find_stack(target, name))


def remove_stack(target: Target, name: str, say: Say) -> bool:
    """Delete a stack; False if there was none."""
    present = find_stack(target, name)
    if present is None:
        return False
    client = aws.client("cloudformation", target)
    with aws.explained(f"the stack {name} could not be deleted"):
        told = len(_events(client, present["StackId"]))
        client.delete_stack(StackName=name)
        _follow(client, "stack_delete_complete", present["StackId"], told, say)
    return True


def find_stack(target: Target, name: str) -> Any:
    """The stack as DescribeStacks has it; None if there is none, or only its first change set."""
    from botocore.exceptions import ClientError

    with aws.explained(f"the stack {name} could not be looked up"):
        try:
            answer = aws.client("cloudformation", target).describe_stacks(StackName=name)
            stack = answer["Stacks"][0]
        except ClientError as error:
            if message("cloudformation", "no_stack").search(error.response["Error"]["Message"]):
                return None
            raise
    return None if stack["StackStatus"] == "REVIEW_IN_PROGRESS" else stack


def stack_outputs(stack: Any) -> dict[str, str]:
    """The outputs of a stack, as `find_stack` has it, by key."""
    return {
        output["OutputKey"]: output["OutputValue"] for output in (stack or {}).get("Outputs", [])
    }


def has_log_group(target: Target, group: str) -> bool:
    """Return True if a log group of exactly this name exists."""
    with aws.explained(f"the log group {group} could not be looked up"):
        answer = aws.client("logs", target).describe_log_groups(logGroupNamePrefix=group)
    return any(item["logGroupName"] == group for item in answer["logGroups"])


def remove_log_group(target: Target, group: str) -> None:
    """Delete a log group with all its events."""
    with aws.explained(f"the log group {group} could not be deleted"):
        aws.client("logs", target).delete_log_group(logGroupName=group)


def stack_alarms(target: Target, name: str) -> list[dict[str, Any]]:
    """The alarms of a stack, those that ring first, with the instances that they are about."""
    client = aws.client("cloudwatch", target)
    found = []
    with aws.explained(f"the alarms of {name} could not be looked up"):
        query = {"AlarmNamePrefix": f"{name}-", "AlarmTypes": ["MetricAlarm", "CompositeAlarm"]}
        both = "[MetricAlarms, CompositeAlarms][]"
        for alarm in aws.paginated(client, "describe_alarms", both, **query):
            state, reason = alarm["StateValue"], alarm.get("StateReason", "")
            shown = {"name": alarm["AlarmName"], "state": state, "reason": reason}
            queries = [metric.get("Expression", "") for metric in alarm.get("Metrics", [])]
            if state == "ALARM" and any("GROUP BY" in query for query in queries):
                shown["about"] = list(_contributors(client, alarm["AlarmName"]))
            found.append(shown)
    return sorted(found, key=lambda entry: (entry["state"] != "ALARM", entry["name"]))


def _contributors(client: Any, alarm: str) -> Iterator[dict[str, str]]:
    """Yield the metrics that breach, which the alarm's own message does not say. botocore has no
    paginator."""
    request = {"AlarmName": alarm}
    while True:
        answer = client.describe_alarm_contributors(**request)
        yield from (dict(each["ContributorAttributes"]) for each in answer["AlarmContributors"])
        if not answer.get("NextToken"):
            return
        request["NextToken"] = answer["NextToken"]


def _parameters(
    template: str, values: Mapping[str, str], present: Any
) -> list[dict[str, str | bool]]:
    declared = yaml_files.parse_template(template)
    before = {entry["ParameterKey"] for entry in (present or {}).get("Parameters", [])}
    kept = before.intersection(declared.get("Parameters", {})).difference(values)
    return [
        *({"ParameterKey": key, "ParameterValue": value} for key, value in values.items()),
        *({"ParameterKey": key, "UsePreviousValue": True} for key in sorted(kept)),
    ]


def _change_text(change: Mapping[str, Any]) -> str:
    replaced = {"True": "  is replaced", "Conditional": "  may be replaced"}
    parts = sorted({detail["Target"].get("Name") or "" for detail in change.get("Details", [])})
    text = f"{change['Action']}  {change['ResourceType']}  {change['LogicalResourceId']}"
    text += f"  ({', '.join(filter(None, parts))})" if any(parts) else ""
    return text + replaced.get(change.get("Replacement", ""), "")


def _events(client: Any, stack_id: str) -> list[Any]:
    events = aws.paginated(client, "describe_stack_events", "StackEvents", StackName=stack_id)
    return list(events)[::-1]


def _follow(client: Any, waiter: str, stack_id: str, told: int, say: Say) -> None:
    """Wait for a stack by a waiter, and print its events after the first `told` as they come."""
    from botocore.exceptions import WaiterError

    failed, given_up = [], message("cloudformation", "given_up")

    def tell(**answer: Any) -> None:
        nonlocal told
        events = _events(client, stack_id)
        for event in events[told:]:
            status, resource = event["ResourceStatus"], event["LogicalResourceId"]
            reason = event.get("ResourceStatusReason", "")
            say(f"{status}  {event['ResourceType']}  {resource}  {reason}".rstrip())
            if status.endswith("_FAILED") and not given_up.search(reason):
                failed.append(f"{resource}: {reason}")
        told = len(events)

    # ExecuteChangeSet and DeleteStack answer while the stack is in its old state, until an event.
    while len(_events(client, stack_id)) == told:
        time.sleep(_WAIT["Delay"])
    # The waiter has no place of its own for this: it looks by DescribeStacks.
    look = "after-call.cloudformation.DescribeStacks"
    client.meta.events.register(look, tell)
    try:
        client.get_waiter(waiter).wait(StackName=stack_id, WaiterConfig=_WAIT)
    except WaiterError as error:
        why = "\n  ".join(failed or [str(error)])
        raise operation_failed(f"CloudFormation gave up:\n  {why}") from None
    finally:
        client.meta.events.unregister(look, tell)
