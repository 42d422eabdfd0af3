"""What CloudFormation would change of a stack, before it does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.base import yaml_files
from kiln.base.errors import operation_failed
from kiln.facts.program_messages import message


@dataclass(frozen=True)
class Proposed:
    """A change set that waits to be executed (stack and name), and its changes as lines."""

    which: Mapping[str, str]
    lines: tuple[str, ...]


def stack_request(
    name: str,
    template: str,
    parameters: Mapping[str, str],
    tags: Mapping[str, str],
    present: Any,
) -> dict[str, Any]:
    """What CreateStack and CreateChangeSet take; parameters that are not given keep their value."""
    entries: list[dict[str, Any]] = [
        {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
    ]
    if present:
        kept = _parameters(template) - set(parameters)
        entries += [
            {"ParameterKey": parameter["ParameterKey"], "UsePreviousValue": True}
            for parameter in present.get("Parameters", [])
            if parameter["ParameterKey"] in kept
        ]
    return {
        "StackName": name,
        "TemplateBody": template,
        "Parameters": entries,
        "Capabilities": ["CAPABILITY_IAM"],
        **({"Tags": [{"Key": k, "Value": v} for k, v in tags.items()]} if tags else {}),
    }


def _parameters(template: str) -> set[str]:
    """The names of a template's parameters; YAML or JSON, which is YAML.

    GetTemplateSummary would say the same, but costs a permission; the templates are our own.
    """
    data = yaml_files.parse_plain(template, "the template", untagged=True)
    return set(data.get("Parameters", {}))


def propose(client: Any, request: Mapping[str, Any], pause: float) -> Proposed | None:
    """A change set for an update; None if nothing would change.

    Raises KilnError (exit status 1) if CloudFormation cannot make one.
    """
    name = f"kiln-{uuid.uuid4().hex[:12]}"
    client.create_change_set(**request, ChangeSetName=name, ChangeSetType="UPDATE")
    which = {"StackName": request["StackName"], "ChangeSetName": name}
    lines: list[str] = []
    while True:
        answer = client.describe_change_set(**which)
        if not answer["Status"].endswith(("_PENDING", "_IN_PROGRESS")):
            break
        time.sleep(pause)
    if answer["Status"] == "FAILED":
        client.delete_change_set(**which)
        reason = answer.get("StatusReason", "")
        if message("cloudformation", "no_changes").search(reason):
            return None
        raise operation_failed(f"the changes of {request['StackName']} cannot be made: {reason}")
    while True:
        lines += [_line(change["ResourceChange"]) for change in answer.get("Changes", [])]
        if "NextToken" not in answer:
            return Proposed(which, tuple(lines))
        answer = client.describe_change_set(**which, NextToken=answer["NextToken"])


def _line(change: Mapping[str, Any]) -> str:
    replaced = {"True": "  is replaced", "Conditional": "  may be replaced"}
    parts = sorted(
        {detail["Target"].get("Name", "") for detail in change.get("Details", [])} - {""}
    )
    text = f"{change['Action']}  {change['ResourceType']}  {change['LogicalResourceId']}"
    text += f"  ({', '.join(parts)})" if parts else ""
    return text + replaced.get(change.get("Replacement", ""), "")
