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
    "DescribeInstanceStatus": "InstanceStatuses",
    "DescribeSnapshots": "Snapshots",
    "DescribeVolumes": "Volumes",
}
_PATHS: dict[str, dict[str, str]] = {
    "DescribeImages": {
        "block-device-mapping": "BlockDeviceMappings.Ebs",
        "block-device-mapping.device-name": "BlockDeviceMappings.DeviceName",
        "image-watermark": "ImageWatermarks",
        "is-public": "Public",
        "manifest-location": "ImageLocation",
        "owner-alias": "ImageOwnerAlias",
        "product-code": "ProductCodes.ProductCodeId",
        "product-code.type": "ProductCodes.ProductCodeType",
        "state-reason-code": "StateReason.Code",
        "state-reason-message": "StateReason.Message",
    },
    "DescribeInstances": {
        "affinity": "Placement.Affinity",
        "availability-zone": "Placement.AvailabilityZone",
        "availability-zone-id": "Placement.AvailabilityZoneId",
        "block-device-mapping": "BlockDeviceMappings.Ebs",
        "block-device-mapping.device-name": "BlockDeviceMappings.DeviceName",
        "dns-name": "PublicDnsName",
        "host-id": "Placement.HostId",
        "instance.group-id": "SecurityGroups.GroupId",
        "instance.group-name": "SecurityGroups.GroupName",
        "instance-state-code": "State.Code",
        "instance-state-name": "State.Name",
        "ip-address": "PublicIpAddress",
        "launch-index": "AmiLaunchIndex",
        "monitoring-state": "Monitoring.State",
        "network-interface": "NetworkInterfaces",
        "network-interface.addresses": "NetworkInterfaces.PrivateIpAddresses",
        "network-interface.group-id": "NetworkInterfaces.Groups.GroupId",
        "network-interface.group-name": "NetworkInterfaces.Groups.GroupName",
        "network-interface.ipv6-address": "NetworkInterfaces.Ipv6Addresses.Ipv6Address",
        "network-interface.ipv4-prefixes.ipv4-prefix": "NetworkInterfaces.Ipv4Prefixes.Ipv4Prefix",
        "network-interface.public-dns-name": "NetworkInterfaces.Association.PublicDnsName",
        "network-interface.tag-key": "NetworkInterfaces.TagSet.Key",
        "network-interface.tag-value": "NetworkInterfaces.TagSet.Value",
        "placement-group-name": "Placement.GroupName",
        "placement-partition-number": "Placement.PartitionNumber",
        "product-code": "ProductCodes.ProductCodeId",
        "product-code.type": "ProductCodes.ProductCodeType",
        "reason": "StateTransitionReason",
        "state-reason-code": "StateReason.Code",
        "state-reason-message": "StateReason.Message",
        "tenancy": "Placement.Tenancy",
    },
    "DescribeInstanceStatus": {
        "event": "Events",
        "instance-state-code": "InstanceState.Code",
        "instance-state-name": "InstanceState.Name",
        "instance-status.reachability": "InstanceStatus.Details.Status",
        "system-status.reachability": "SystemStatus.Details.Status",
    },
    "DescribeSnapshots": {"status": "State"},
    "DescribeVolumes": {
        "attachment": "Attachments",
        "attachment.status": "Attachments.State",
        "status": "State",
    },
}
# Of the reservation, not of the instance.
_OF_RESERVATION = {
    "owner-id": "OwnerId",
    "reservation-id": "ReservationId",
    "requester-id": "RequesterId",
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
_UNLISTED = {"DescribeImages": {"platform-details", "usage-operation"}}


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
        if not name:
            raise error("InvalidParameterValue", "The filter 'null' is invalid")
        if filters and name not in filters and not _is_tag(name, filters):
            raise error("InvalidParameterValue", f"The filter '{name}' is invalid")
        if not entry.get("Values"):
            raise error("InvalidParameterValue", "The filter must have at least one value")


def _is_tag(name: str, filters: frozenset[str]) -> bool:
    of_tags = any(name.startswith("tag") for name in filters)
    return of_tags and (name.startswith("tag:") or name in ("tag-key", "tag-value"))


def path(call: str, name: str) -> str:
    """Where the value of a filter is in an entry of a call's answer: members, with dots between."""
    table = _PATHS.get(call, {})
    for cut in range(len(name), 0, -1):
        if name[:cut] in table and (cut == len(name) or name[cut] == "."):
            rest = name[cut:]
            return (
                table[name[:cut]]
                + "".join(map(_camel, rest.split(".")[:1]))
                + "".join(f".{_camel(part)}" for part in rest.split(".")[1:])
            )
    return ".".join(map(_camel, name.split(".")))


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
    call = "DescribeInstances"
    shape = _answers().operation_model(call).output_shape.members["Reservations"].member
    of_all = [entry for entry in parameters if entry["Name"] in _OF_RESERVATION]
    rest = [entry for entry in parameters if entry["Name"] not in _OF_RESERVATION]
    kept = []
    for reservation in reservations:
        if not all(
            _any_of(
                _values(reservation, shape, _OF_RESERVATION[criterion["Name"]]), criterion["Values"]
            )
            for criterion in of_all
        ):
            continue
        reservation.instances = keep(call, reservation.instances, rest)
        if reservation.instances:
            kept.append(reservation)
    return kept


def _matches(call: str, thing: Any, shape: Any, asked_filter: dict[str, Any]) -> bool:
    name = asked_filter["Name"]
    if name.startswith(_TAGS):
        tags = {tag["key"]: tag["value"] for tag in thing.get_tags()}
        if name.startswith("tag:"):
            key = name[len("tag:") :]
            return key in tags and _any_of([tags[key]], asked_filter["Values"])
        return _any_of(list(tags if name == "tag-key" else tags.values()), asked_filter["Values"])
    return _any_of(_values(thing, shape, path(call, name)), asked_filter["Values"])


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


def _values(thing: Any, shape: Any, where: str) -> list[str]:
    return [_text(value) for value in _at(thing, shape, where.split("."))]


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


def exists(call: str, name: str) -> bool:
    """Whether the path of a filter is in the model of the call's answer."""
    shape = model().operation_model(call).output_shape
    where = path(call, name)
    full = [*LISTS[call].split("."), *where.split(".")]
    if call == "DescribeInstances" and name in _OF_RESERVATION:
        full = ["Reservations", _OF_RESERVATION[name]]
    for part in full:
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
