"""Stacks: created, updated and deleted in a thread, and rolled back when something fails."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lab.cloudformation import template
from lab.cloudformation.errors import CloudFormationError, ResourceError
from lab.cloudformation.kinds import identity, machines, nights, scaling, tagging, watching
from lab.cloudformation.kinds.kind import Kind, Made, Place
from lab.cloudformation.template import NO_VALUE, Scope

KINDS: Mapping[str, Kind] = {
    **identity.KINDS,
    **machines.KINDS,
    **nights.KINDS,
    **scaling.KINDS,
    **watching.KINDS,
}
_FAILURES = (ResourceError, ClientError, BotoCoreError, CloudFormationError, KeyError, ValueError)
STACK = "AWS::CloudFormation::Stack"
# Seconds in which what has no guest to wait for is done.
_MOMENT = 2


@dataclass
class Resource:
    """A resource of a stack as it is: what it was made of, and what was made."""

    name: str
    type: str
    properties: dict[str, Any]
    made: Made
    deletion: str  # Delete, Retain or RetainExceptOnCreate


@dataclass(frozen=True)
class Wanted:
    """A template with the values of its parameters, and the stack's tags."""

    text: str
    data: Mapping[str, Any]
    parameters: Mapping[str, str]
    resolved: Mapping[str, Any]
    tags: tuple[tuple[str, str], ...] = ()


@dataclass
class Stack:
    """A stack and what happened to it."""

    name: str
    id: str
    place: Place
    wanted: Wanted
    status: str = "CREATE_IN_PROGRESS"
    reason: str = ""
    resources: dict[str, Resource] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    change_sets: dict[str, Any] = field(default_factory=dict)
    created: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def say(self, status: str, name: str, type_: str, made: str = "", reason: str = "") -> None:
        """Remember an event."""
        self.events.append(
            {
                "StackId": self.id,
                "EventId": str(uuid.uuid4()),
                "StackName": self.name,
                "LogicalResourceId": name,
                "PhysicalResourceId": made,
                "ResourceType": type_,
                "Timestamp": datetime.now(timezone.utc),
                "ResourceStatus": status,
                **({"ResourceStatusReason": reason} if reason else {}),
            }
        )

    def become(self, status: str, reason: str = "") -> None:
        """Change the stack's own status; the event first, as who waits looks at the status."""
        self.say(status, self.name, STACK, self.id, reason)
        self.status, self.reason = status, reason

    def scope(
        self, wanted: Wanted, missing: Callable[[str, str | None], Any] | None = None
    ) -> Scope:
        """What expressions of a template name, by the resources that are there now."""

        def of_resource(name: str, attribute: str | None) -> Any:
            resource = self.resources.get(name)
            if resource is None:
                if missing is not None:
                    return missing(name, attribute)
                raise CloudFormationError(f"Unresolved resource dependencies [{name}]")
            if attribute is None:
                return resource.made.id
            if attribute not in resource.made.attributes:
                raise CloudFormationError(
                    f"Requested attribute {attribute} does not exist in schema for {resource.type}"
                )
            return resource.made.attributes[attribute]

        return Scope(wanted.data, wanted.resolved, pseudo(self.place, self), of_resource)


def pseudo(place: Place, stack: Stack | None = None) -> dict[str, str]:
    """The pseudo parameters."""
    return {
        "AWS::AccountId": place.account,
        "AWS::Partition": "aws",
        "AWS::Region": place.region,
        "AWS::StackName": place.stack,
        "AWS::StackId": stack.id if stack else "",
        "AWS::URLSuffix": "amazonaws.com",
    }


def present(wanted: Wanted, scope: Scope) -> dict[str, Any]:
    """The resources of a template whose conditions hold."""
    return {
        name: resource
        for name, resource in wanted.data["Resources"].items()
        if "Condition" not in resource or scope.holds(resource["Condition"])
    }


def start(work: Callable[[Stack], None], stack: Stack) -> None:
    """Do it in the background; returns when it is done or after a moment.

    AWS's own CLI asks for the state at once, and then only every half minute.
    """
    working = threading.Thread(target=work, args=(stack,), daemon=True, name=f"stack {stack.name}")
    working.start()
    working.join(_MOMENT)


def create(stack: Stack) -> None:
    """Make all resources; when one fails, delete what was made."""
    try:
        for name, item in _wanted(stack, stack.wanted):
            _make(stack, name, item, stack.wanted)
        stack.outputs = _outputs(stack, stack.wanted)
    except _FAILURES as error:
        stack.become(
            "ROLLBACK_IN_PROGRESS", f"The following resource(s) failed to create: {_why(error)}"
        )
        _delete_all(stack, on_create=True)
        stack.become("ROLLBACK_COMPLETE")
        return
    stack.become("CREATE_COMPLETE")


def update(stack: Stack, wanted: Wanted) -> None:
    """Change what differs, make what is new, then delete what is no longer wanted."""
    before, tagged = dict(stack.resources), stack.place
    stack.place = replace(tagged, tags=wanted.tags)
    touched: list[str] = []
    try:
        names = []
        for name, item in _wanted(stack, wanted):
            names.append(name)
            if _differs(stack, name, item, wanted):
                touched.append(name)
                _change(stack, name, item, wanted)
        outputs = _outputs(stack, wanted)
        _tag(stack, before, tagged, stack.place)
    except _FAILURES as error:
        stack.become("UPDATE_ROLLBACK_IN_PROGRESS", _why(error))
        stack.place = tagged
        _back(stack, before, touched)
        stack.become("UPDATE_ROLLBACK_COMPLETE")
        return
    stack.wanted, stack.outputs = wanted, outputs
    stack.become("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
    for name in reversed(list(before)):
        old, now = before[name], stack.resources.get(name)
        if name not in names:
            _delete(stack, old)
            stack.resources.pop(name, None)
        elif now is not None and now.made.id != old.made.id:
            _delete(stack, old)
    stack.become("UPDATE_COMPLETE")


def _tag(stack: Stack, before: Mapping[str, Resource], old: Place, new: Place) -> None:
    """Give the resources that an update keeps their tags, which are also the stack's."""
    for name, resource in stack.resources.items():
        kept = before.get(name)
        if kept is None or kept.made.id != resource.made.id or not takes_tags(resource.type):
            continue
        tags = [
            {tag["Key"]: tag["Value"] for tag in place.all_tags(properties.get("Tags"))}
            for place, properties in ((old, kept.properties), (new, resource.properties))
        ]
        if tags[0] != tags[1]:
            tagging.change(resource.type, new, resource.made, *tags)


def takes_tags(kind: str) -> bool:
    """Whether resources of a type have the stack's tags, and change them."""
    return kind in tagging.CHANGES


def delete(stack: Stack) -> None:
    """Delete all resources in reverse order."""
    failed = _delete_all(stack, on_create=False)
    if failed:
        text = f"The following resource(s) failed to delete: [{', '.join(failed)}]."
        stack.become("DELETE_FAILED", text)
        return
    stack.become("DELETE_COMPLETE")


def _wanted(stack: Stack, wanted: Wanted) -> list[tuple[str, dict[str, Any]]]:
    scope = stack.scope(wanted)
    there = present(wanted, scope)
    return [(name, there[name]) for name in template.in_order(there)]


def _evaluated(stack: Stack, declared: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    return properties_of(stack.scope(wanted), declared)


def properties_of(scope: Scope, declared: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a resource with its update policy among them: a type that has none refuses
    it like an unknown property."""
    value = scope.value(declared.get("Properties", {}))
    properties = {} if value is NO_VALUE else dict(value)
    if "UpdatePolicy" in declared:
        properties["UpdatePolicy"] = scope.value(declared["UpdatePolicy"])
    return properties


def _make(stack: Stack, name: str, declared: Mapping[str, Any], wanted: Wanted) -> None:
    kind = KINDS[declared["Type"]]
    stack.say("CREATE_IN_PROGRESS", name, declared["Type"])
    try:
        properties = _evaluated(stack, declared, wanted)
        kind.check(declared["Type"], properties)
        made = kind.create(stack.place, name, properties)
    except _FAILURES as error:
        stack.say("CREATE_FAILED", name, declared["Type"], reason=_why(error))
        raise ResourceError(f"[{name}].") from None
    deletion = declared.get("DeletionPolicy", "Delete")
    stack.resources[name] = Resource(name, declared["Type"], properties, made, deletion)
    stack.say("CREATE_COMPLETE", name, declared["Type"], made.id)


def _differs(stack: Stack, name: str, declared: Mapping[str, Any], wanted: Wanted) -> bool:
    there = stack.resources.get(name)
    if there is None or there.type != declared["Type"]:
        return True
    new = _evaluated(stack, declared, wanted)
    return template.canonical(new) != template.canonical(there.properties)


def _change(stack: Stack, name: str, declared: Mapping[str, Any], wanted: Wanted) -> None:
    there = stack.resources.get(name)
    if there is None or there.type != declared["Type"]:
        _make(stack, name, declared, wanted)
        return
    kind, properties = KINDS[declared["Type"]], _evaluated(stack, declared, wanted)
    stack.say("UPDATE_IN_PROGRESS", name, declared["Type"], there.made.id)
    try:
        kind.check(declared["Type"], properties)
        if kind.update is not None and kind.in_place(changed(there.properties, properties)):
            made = kind.update(stack.place, there.made, properties)
        else:
            made = kind.create(stack.place, name, properties)
    except _FAILURES as error:
        stack.say("UPDATE_FAILED", name, declared["Type"], there.made.id, _why(error))
        raise ResourceError(f"[{name}]: {_why(error)}") from None
    stack.resources[name] = replace(there, properties=properties, made=made)
    stack.say("UPDATE_COMPLETE", name, declared["Type"], made.id)


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """The properties in which two resources differ."""
    return {
        key
        for key in {*old, *new}
        if template.canonical(old.get(key)) != template.canonical(new.get(key))
    }


def _back(stack: Stack, before: Mapping[str, Resource], touched: list[str]) -> None:
    """Put what an update has touched back as it was."""
    for name in reversed(touched):
        now, old = stack.resources.get(name), before.get(name)
        if now is None or now is old:
            continue
        if old is not None and old.made.id == now.made.id:
            kind = KINDS[old.type]
            if kind.update is not None:
                kind.update(stack.place, old.made, old.properties)
            stack.resources[name] = old
            stack.say("UPDATE_COMPLETE", name, old.type, old.made.id)
            continue
        _delete(stack, now)
        if old is None:
            del stack.resources[name]
        else:
            stack.resources[name] = old


def _delete_all(stack: Stack, *, on_create: bool) -> list[str]:
    failed = []
    for name in reversed(list(stack.resources)):
        resource = stack.resources[name]
        kept = ("Retain",) if on_create else ("Retain", "RetainExceptOnCreate")
        if resource.deletion in kept:
            stack.say("DELETE_SKIPPED", name, resource.type, resource.made.id)
            del stack.resources[name]
        elif _delete(stack, resource):
            del stack.resources[name]
        else:
            failed.append(name)
    return failed


def _delete(stack: Stack, resource: Resource) -> bool:
    stack.say("DELETE_IN_PROGRESS", resource.name, resource.type, resource.made.id)
    try:
        KINDS[resource.type].delete(stack.place, resource.made)
    except _FAILURES as error:
        stack.say("DELETE_FAILED", resource.name, resource.type, resource.made.id, _why(error))
        return False
    stack.say("DELETE_COMPLETE", resource.name, resource.type, resource.made.id)
    return True


def _outputs(stack: Stack, wanted: Wanted) -> dict[str, str]:
    scope = stack.scope(wanted)
    return {
        name: template.as_text(scope.value(output["Value"]))
        for name, output in wanted.data.get("Outputs", {}).items()
        if "Condition" not in output or scope.holds(output["Condition"])
    }


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
