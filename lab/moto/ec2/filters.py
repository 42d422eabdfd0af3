"""Filters of EC2's Describe calls, evaluated on what the call answers.

Which filters a call has is read from EC2's API reference, as the AWS SDKs' model carries it.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import botocore.session
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.core.utils import get_service_model

from lab.moto.ec2.calls import error

# The calls whose filters the lab evaluates: the list in the answer, and where a filter's value is
# when its name does not say it (a prefix of the name: the path to what the prefix stands for).
LISTS = {
    "DescribeImages": "Images",
    "DescribeInstances": "Reservations.Instances",
    "DescribeSnapshots": "Snapshots",
    "DescribeVolumes": "Volumes",
}
_PATHS: dict[str, dict[str, str]] = {
    "DescribeImages": {
        "block-device-mapping": "BlockDeviceMappings.Ebs",
        "is-public": "Public",
        "owner-alias": "ImageOwnerAlias",
    },
    "DescribeInstances": {
        "availability-zone": "Placement.AvailabilityZone",
        "dns-name": "PublicDnsName",
        "instance.group-id": "SecurityGroups.GroupId",
        "instance-state-name": "State.Name",
        "ip-address": "PublicIpAddress",
    },
    "DescribeSnapshots": {"status": "State"},
    "DescribeVolumes": {"attachment": "Attachments", "status": "State"},
}
_TAGS = ("tag:", "tag-key", "tag-value")


@functools.cache
def model() -> Any:
    """EC2 in the AWS SDK's model."""
    return botocore.session.get_session().get_service_model("ec2")


@functools.cache
def _answers() -> Any:
    """moto's view of the same model, by which it finds values in its objects."""
    return get_service_model("ec2")


# Filters that clients use and the reference does not list.
_UNLISTED = {"DescribeImages": {"platform-details"}}


@functools.cache
def documented(call: str) -> frozenset[str]:
    """The names of a call's filters in EC2's API reference; empty where it lists none."""
    members = model().operation_model(call).input_shape.members
    shape = members.get("Filters") or members.get("Filter")
    text = shape.documentation if shape else ""
    text = re.sub(r"(?<=.)<ul>.*?</ul>", "", text.partition("<ul>")[2])
    listed = re.findall(r"<li>\s*<p>\s*<code>([^<]+)</code>", text)
    names = {html.unescape(name).strip() for name in listed}
    return frozenset(names | _UNLISTED.get(call, set()) if names else ())


def check(call: str, parameters: list[dict[str, Any]]) -> None:
    """Raise EC2's error for a filter that the call does not have, or that has no values."""
    filters = documented(call)
    for entry in parameters:
        name = entry.get("Name")
        is_tag = _is_tag(str(name), filters)
        if filters and name not in filters and not is_tag:
            raise error("InvalidParameterValue", f"The filter '{name}' is invalid")
        if not entry.get("Values"):
            raise error("InvalidParameterValue", "The filter must have at least one value")
        if call in LISTS and not is_tag and not _exists(call, str(name)):
            raise error("UnsupportedOperation", f"AMI Kiln lab: {call} has no filter '{name}' here")


def _is_tag(name: str, filters: frozenset[str]) -> bool:
    of_tags = any(name.startswith("tag") for name in filters)
    return of_tags and (name.startswith("tag:") or name in ("tag-key", "tag-value"))


def _path(call: str, name: str) -> list[str]:
    """The members of an entry of a call's answer that lead to the value of a filter."""
    for begin, members in _PATHS[call].items():
        if name == begin or name.startswith(begin + "."):
            return [*members.split("."), *map(_camel, name[len(begin) :].split(".")[1:])]
    return [_camel(part) for part in name.split(".")]


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def keep(call: str, things: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
    """The entries of a call's answer that every filter matches."""
    shape = _answers().operation_model(call).output_shape
    for part in LISTS[call].split("."):
        shape = shape.members[part].member
    return [
        thing
        for thing in things
        if all(_matches(call, thing, shape, entry) for entry in parameters)
    ]


def keep_instances(reservations: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
    """The reservations with the instances that every filter matches.

    They are copies of moto's: it makes a new list of them for each call.
    """
    for reservation in reservations:
        reservation.instances = keep("DescribeInstances", reservation.instances, parameters)
    return [reservation for reservation in reservations if reservation.instances]


def _matches(call: str, thing: Any, shape: Any, asked_filter: dict[str, Any]) -> bool:
    name = asked_filter["Name"]
    if name.startswith(_TAGS):
        tags = {tag["key"]: tag["value"] for tag in thing.get_tags()}
        if name.startswith("tag:"):
            key = name[len("tag:") :]
            return key in tags and _any_of([tags[key]], asked_filter["Values"])
        return _any_of(list(tags if name == "tag-key" else tags.values()), asked_filter["Values"])
    values = [_text(value) for value in _at(thing, shape, _path(call, name))]
    return _any_of(values, asked_filter["Values"])


def _any_of(values: list[str], wanted: list[str]) -> bool:
    return any(pattern(name).fullmatch(value) for name in wanted for value in values)


@functools.lru_cache(maxsize=1000)
def pattern(text: str) -> re.Pattern[str]:
    r"""A filter's value: * and ? are wildcards, a backslash takes that meaning away."""
    parts = re.findall(r"\\.|.", text, re.S)
    special = {"*": ".*", "?": "."}
    return re.compile(
        "".join(special.get(part, re.escape(part.removeprefix("\\") or part)) for part in parts),
        re.S,
    )


_PICK = XFormedAttributePicker()


def _at(thing: Any, shape: Any, parts: list[str]) -> Iterator[Any]:
    if thing is None:
        return
    if shape.type_name == "list":
        for inner in thing:
            yield from _at(inner, shape.member, parts)
    elif not parts:
        yield thing
    elif shape.type_name == "structure" and parts[0] in shape.members:
        inner = shape.members[parts[0]]
        value = _PICK(AttributePickerContext(obj=thing, key=parts[0], shape=inner))
        yield from _at(value, inner, parts[1:])


def _exists(call: str, name: str) -> bool:
    """Return True if the path of a filter is in the model of the call's answer."""
    shape = model().operation_model(call).output_shape
    for part in [*LISTS[call].split("."), *_path(call, name)]:
        shape = shape.member if shape.type_name == "list" else shape
        if shape.type_name != "structure" or part not in shape.members:
            return False
        shape = shape.members[part]
    return True


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return str(value)
