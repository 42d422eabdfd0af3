"""CloudFormation stacks: created, updated and deleted, with their events as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.cloud import aws, change_sets
from kiln.cloud.target import Target
from kiln.facts.program_messages import message

# A stack whose creation has failed can only be deleted.
_DEAD = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED")
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
_LONGEST = 51_200
Say = Callable[[str], None]


def deploy_stack(
    target: Target,
    name: str,
    template: str,
    parameters: Mapping[str, str],
    say: Say,
    *,
    tags: Mapping[str, str] | None = None,
    plan: bool = False,
    pause: float | None = None,
) -> dict[str, str]:
    """Create a stack, or update it; its outputs. A parameter that is not given keeps its value.

    An update's changes are printed before it begins; with `plan` nothing is done after that. The
    resources of a failed creation are removed. Raises KilnError (exit status 1) if CloudFormation
    refuses, or with the reasons of the resources that failed.
    """
    if len(template.encode()) > _LONGEST:
        raise KilnError(
            f"the template has {len(template.encode())} bytes; CloudFormation takes {_LONGEST}",
            hint="name fewer instance types or instances",
        )
    client = aws.cloudformation(target)
    seconds = target.wait_seconds if pause is None else pause
    present = find_stack(target, name)
    if present and is_dead(present):
        if plan:
            say(f"{name} could not be created earlier: its rest would be removed, and it created")
            return {}
        say(f"{name} could not be created earlier: what is left of it is removed")
        remove_stack(target, name, say, seconds)
        present = None
    wanted = change_sets.stack_request(name, template, parameters, tags or {}, present)
    with aws.explained(f"the stack {name} could not be deployed"):
        if present is None:
            if plan:
                say(f"there is no stack {name}: it would be created")
                return {}
            made = client.create_stack(**wanted)
            _follow_creation(target, name, str(made["StackId"]), say, seconds)
            return stack_outputs(find_stack(target, name))
        proposed = change_sets.propose(client, wanted, seconds)
        if proposed is None:
            say(f"{name} is as the template says: nothing to change")
            return stack_outputs(present)
        for line in proposed.lines:
            say(line)
        if plan:
            client.delete_change_set(**proposed.which)
            return stack_outputs(present)
        seen = _newest_event(client, name)
        client.execute_change_set(**proposed.which)
        _follow(client, str(present["StackId"]), seen, say, seconds)
        return stack_outputs(find_stack(target, name))


def remove_stack(target: Target, name: str, say: Say, pause: float | None = None) -> bool:
    """Delete a stack; False if there was none.

    Raises KilnError (exit status 1) if CloudFormation refuses.
    """
    client = aws.cloudformation(target)
    present = find_stack(target, name)
    if present is None:
        return False
    seconds = target.wait_seconds if pause is None else pause
    with aws.explained(f"the stack {name} could not be deleted"):
        seen = _newest_event(client, name)
        client.delete_stack(StackName=name)
        _follow(client, str(present["StackId"]), seen, say, seconds, good=("DELETE_COMPLETE",))
    return True


def is_dead(present: Any) -> bool:
    """Whether a stack could not be created, so that it can only be deleted."""
    return present["StackStatus"] in _DEAD


def find_stack(target: Target, name: str) -> Any:
    """The stack as DescribeStacks has it, or None."""
    from botocore.exceptions import ClientError

    with aws.explained(f"the stack {name} could not be looked up"):
        try:
            return aws.cloudformation(target).describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as error:
            if message("cloudformation", "no_stack").search(error.response["Error"]["Message"]):
                return None
            raise


def _follow_creation(target: Target, name: str, stack_id: str, say: Say, pause: float) -> None:
    try:
        _follow(aws.cloudformation(target), stack_id, None, say, pause)
    except KilnError as error:
        present = find_stack(target, name)
        if present is None or not is_dead(present):
            raise
        remove_stack(target, name, say, pause)
        raise operation_failed(f"{error.message}\nwhat it had made is removed") from None


def _newest_event(client: Any, name: str) -> str | None:
    events = client.describe_stack_events(StackName=name)["StackEvents"]
    return str(events[0]["EventId"]) if events else None


def _follow(
    client: Any,
    stack_id: str,
    seen: str | None,
    say: Say,
    pause: float,
    good: tuple[str, ...] = ("CREATE_COMPLETE", "UPDATE_COMPLETE"),
) -> None:
    """Tell each event after `seen` until the stack is settled; raises KilnError unless it is in one
    of the states `good`."""
    failed: list[str] = []
    # DeleteStack and ExecuteChangeSet answer before their work begins, and until then the stack is
    # in its old state; the first event says that it has:
    # https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_ExecuteChangeSet.html
    begun = seen is None  # a creation
    while True:
        # First the state: the events until then are all there.
        status = client.describe_stacks(StackName=stack_id)["Stacks"][0]["StackStatus"]
        begun = begun or status == "DELETE_COMPLETE"
        settled = begun and not status.endswith("_IN_PROGRESS")
        fresh, seen = _events_since(client, stack_id, seen)
        begun = begun or bool(fresh)
        for event in fresh:
            now, reason = event["ResourceStatus"], event.get("ResourceStatusReason", "")
            line = f"{now}  {event['ResourceType']}  {event['LogicalResourceId']}"
            say(f"{line}  {reason}".rstrip())
            given_up = message("cloudformation", "given_up").search(reason)
            if now.endswith("_FAILED") and not given_up:
                failed.append(f"{event['LogicalResourceId']}: {reason}")
        if settled:
            break
        time.sleep(pause)
    if status not in good:
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


def stack_outputs(stack: Any) -> dict[str, str]:
    """The outputs of a stack, as `find_stack` has it, by key."""
    return {
        output["OutputKey"]: output["OutputValue"] for output in (stack or {}).get("Outputs", [])
    }
