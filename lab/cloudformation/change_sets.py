"""What an update would change of a stack, or its creation make."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from lab.cloudformation import stacks, template
from lab.cloudformation.stacks import Stack, Wanted

NOTHING = (
    "The submitted information didn't contain changes. Submit different information to create a "
    "change set."
)


@dataclass(frozen=True)
class ChangeSet:
    """A change set of a stack; `changes` as DescribeChangeSet has them."""

    id: str
    name: str
    wanted: Wanted
    changes: tuple[dict[str, Any], ...]


def made(stack: Stack, name: str, wanted: Wanted) -> ChangeSet:
    """A new change set of a stack, remembered there."""
    place = stack.place
    arn = f"arn:aws:cloudformation:{place.region}:{place.account}:changeSet/{name}/{uuid.uuid4()}"
    change_set = ChangeSet(arn, name, wanted, tuple(changes(stack, wanted)))
    stack.change_sets[arn] = change_set
    return change_set


def changes(stack: Stack, wanted: Wanted) -> list[dict[str, Any]]:
    """The resources that would be added, modified and removed, in the order of the template.

    What depends on a resource that is not there yet differs, as its value is not known.
    """
    scope = stack.scope(wanted, lambda name, attribute: f"{{{{new {name} {attribute}}}}}")
    there = stacks.present(wanted, scope)
    listed = []
    for name in template.in_order(there):
        kind = there[name]["Type"]
        old = stack.resources.get(name)
        if old is None or old.type != kind:
            listed.append(_change("Add", name, kind))
            continue
        new = stacks.properties_of(scope, there[name])
        differ = stacks.changed(old.properties, new)
        if not differ and wanted.tags != stack.place.tags and stacks.takes_tags(kind):
            listed.append(_change("Modify", name, kind, old.made.id) | {"Scope": ["Tags"]})
        if differ:
            kept = stacks.KINDS[kind].in_place(differ)
            listed.append(_change("Modify", name, kind, old.made.id, sorted(differ), kept=kept))
    for name, old in stack.resources.items():
        if name not in there:
            listed.append(_change("Remove", name, old.type, old.made.id))
    return listed


def _change(
    action: str,
    name: str,
    kind: str,
    made_id: str = "",
    differ: list[str] | None = None,
    *,
    kept: bool = True,
) -> dict[str, Any]:
    change: dict[str, Any] = {
        "Action": action,
        "LogicalResourceId": name,
        "ResourceType": kind,
        "Scope": [],
        "Details": [],
    }
    if made_id:
        change["PhysicalResourceId"] = made_id
    if action == "Modify":
        change["Replacement"] = "False" if kept else "True"
        change["Scope"] = ["Properties"]
        change["Details"] = [
            {"Target": {"Attribute": "Properties", "Name": name}, "Evaluation": "Static"}
            for name in differ or []
        ]
    return change
