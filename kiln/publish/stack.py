"""CloudFormation stacks: created, updated and deleted, with their events as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kiln.base.errors import operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target

_GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "DELETE_COMPLETE")
# A stack whose creation has failed can only be deleted.
_DEAD = "ROLLBACK_COMPLETE"


def deploy_stack(
    target: Target,
    name: str,
    template: str,
    parameters: Mapping[str, str],
    say: Callable[[str], None],
    pause: float = 3.0,
) -> dict[str, str]:
    """Create a stack, or update it; its outputs. A parameter that is not given keeps its value.

    Raises KilnError (exit status 1) if CloudFormation refuses, or with the reasons of the resources
    that failed.
    """
    client = aws.cloudformation(target)
    present = _stack(client, name)
    if present and present["StackStatus"] == _DEAD:
        raise operation_failed(
            f"the stack {name} could not be created earlier",
            hint="delete it with --delete, then run this again",
        )
    given: list[dict[str, Any]] = [
        {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
    ]
    if present:
        given += [
            {"ParameterKey": one["ParameterKey"], "UsePreviousValue": True}
            for one in present.get("Parameters", [])
            if one["ParameterKey"] not in parameters
        ]
    wanted: dict[str, Any] = {
        "StackName": name,
        "TemplateBody": template,
        "Parameters": given,
        "Capabilities": ["CAPABILITY_IAM"],
    }
    with aws.explained(f"the stack {name} could not be deployed"):
        seen = _newest_event(client, name) if present else None
        try:
            answer = client.update_stack(**wanted) if present else client.create_stack(**wanted)
        except client.exceptions.ClientError as error:
            if "No updates are to be performed" not in error.response["Error"]["Message"]:
                raise
            say(f"{name} is as the template says: nothing to change")
            return _outputs(present)
        _follow(client, str(answer["StackId"]), seen, say, pause)
        return _outputs(_stack(client, name))


def delete_stack(target: Target, name: str, say: Callable[[str], None], pause: float = 3.0) -> bool:
    """Delete a stack; False if there was none.

    Raises KilnError (exit status 1) if CloudFormation refuses.
    """
    client = aws.cloudformation(target)
    present = _stack(client, name)
    if present is None:
        return False
    with aws.explained(f"the stack {name} could not be deleted"):
        seen = _newest_event(client, name)
        client.delete_stack(StackName=name)
        _follow(client, str(present["StackId"]), seen, say, pause)
    return True


def _stack(client: Any, name: str) -> Any:
    """The stack, or None."""
    from botocore.exceptions import ClientError

    with aws.explained(f"the stack {name} could not be looked up"):
        try:
            return client.describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as error:
            if "does not exist" in error.response["Error"]["Message"]:
                return None
            raise


def _newest_event(client: Any, name: str) -> str | None:
    events = client.describe_stack_events(StackName=name)["StackEvents"]
    return str(events[0]["EventId"]) if events else None


def _follow(
    client: Any, stack_id: str, seen: str | None, say: Callable[[str], None], pause: float
) -> None:
    """Tell each event until the stack is settled."""
    failed: list[str] = []
    while True:
        fresh, seen = _events_since(client, stack_id, seen)
        for event in fresh:
            status, reason = event["ResourceStatus"], event.get("ResourceStatusReason", "")
            line = f"{status}  {event['ResourceType']}  {event['LogicalResourceId']}"
            say(f"{line}  {reason}".rstrip())
            if status.endswith("_FAILED") and "cancelled" not in reason:
                failed.append(f"{event['LogicalResourceId']}: {reason}")
        status = client.describe_stacks(StackName=stack_id)["Stacks"][0]["StackStatus"]
        if not status.endswith("_IN_PROGRESS"):
            break
        time.sleep(pause)
    if status not in _GOOD:
        raise operation_failed(
            f"the stack is {status}:\n  " + "\n  ".join(failed or ["CloudFormation says no more"])
        )


def _events_since(client: Any, stack_id: str, seen: str | None) -> tuple[list[Any], str | None]:
    """The events after `seen`, oldest first, and the newest one's id."""
    fresh: list[Any] = []
    pages = client.get_paginator("describe_stack_events").paginate(StackName=stack_id)
    for page in pages:
        for event in page["StackEvents"]:
            if event["EventId"] == seen:
                fresh.reverse()
                return fresh, str(fresh[-1]["EventId"]) if fresh else seen
            fresh.append(event)
    fresh.reverse()
    return fresh, str(fresh[-1]["EventId"]) if fresh else seen


def _outputs(stack: Any) -> dict[str, str]:
    return {one["OutputKey"]: one["OutputValue"] for one in (stack or {}).get("Outputs", [])}
