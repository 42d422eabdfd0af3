"""Ids that are not of EC2's form are refused as malformed, before anything is looked up.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lab.moto.ec2.calls import error

# Parameter, singular: prefix of its ids, and the error.
_FORMS = {
    "ImageId": ("ami", "InvalidAMIID.Malformed"),
    "InstanceId": ("i", "InvalidInstanceID.Malformed"),
    "SnapshotId": ("snap", "InvalidSnapshotID.Malformed"),
    "VolumeId": ("vol", "InvalidVolumeID.Malformed"),
    "GroupId": ("sg", "InvalidGroupId.Malformed"),
    "LaunchTemplateId": ("lt", "InvalidLaunchTemplateId.Malformed"),
}
# These take `resolve:ssm:` too.
_BY_PARAMETER = (
    "CreateFleet",
    "CreateLaunchTemplate",
    "CreateLaunchTemplateVersion",
    "RequestSpotInstances",
    "RunInstances",
)


# Characters of a tag's key and value:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
# The words of the refusal, of a value: https://github.com/iriusrisk/GoCD-EC2-Elastic-Agent-Plugin/issues/24
_TAG = {"key": 128, "value": 256}


def check_tags(parameters: dict[str, Any]) -> None:
    """Raise EC2's error for a tag that is too long, or has a key of AWS's own."""
    tags = list(parameters.get("Tags") or [])
    for specification in parameters.get("TagSpecifications") or []:
        tags += specification.get("Tags") or []
    for tag in tags:
        for part, most in _TAG.items():
            if len(str(tag.get(part.title()) or "")) > most:
                text = f"Tag {part} exceeds the maximum length of {most} characters"
                raise error("InvalidParameterValue", text)
        if str(tag.get("Key")).lower().startswith("aws:"):
            text = "Tag keys starting with 'aws:' are reserved for internal use"
            raise error("InvalidParameterValue", text)


def check(call: str, parameters: Any) -> None:
    """Raise EC2's error for the first malformed id among a call's parameters."""
    for name, value in named(parameters):
        prefix, code = _FORMS[name]
        if name == "ImageId" and call in _BY_PARAMETER and value.startswith("resolve:ssm:"):
            continue
        if value and not re.fullmatch(f"{prefix}-([0-9a-f]{{8}}|[0-9a-f]{{17}})", value):
            raise error(code, f'Invalid id: "{value}" (expecting "{prefix}-...")')


def named(parameters: Any) -> Iterator[tuple[str, str]]:
    """The ids among a call's parameters, with the singular name of each one's parameter."""
    if isinstance(parameters, list):
        for inner in parameters:
            yield from named(inner)
    if not isinstance(parameters, dict):
        return
    for name, value in parameters.items():
        if name in _FORMS and isinstance(value, str):
            yield name, value
        elif name.endswith("s") and name[:-1] in _FORMS and isinstance(value, list):
            yield from ((name[:-1], item) for item in value if isinstance(item, str))
        else:
            yield from named(value)
