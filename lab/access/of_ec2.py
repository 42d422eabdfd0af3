"""EC2's calls as policies see them: each resource that a call names or makes is asked by itself.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/supported-iam-actions-tagging.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

# Condition keys of EC2's that the lab gives a value, or knows to be absent.
CONDITION_KEYS = frozenset(
    {
        *("aws:RequestTag/", "aws:TagKeys", "aws:ResourceTag/", "ec2:ResourceTag/"),
        *("ec2:CreateAction", "ec2:Region", "ec2:InstanceType", "ec2:InstanceID", "ec2:ImageID"),
        *("ec2:Attribute/", "iam:PassedToService"),
    }
)
# Beginning of an id → kind.
_KINDS = {
    "ami": "image",
    "cr": "capacity-reservation",
    "eni": "network-interface",
    "i": "instance",
    "lt": "launch-template",
    "sg": "security-group",
    "snap": "snapshot",
    "subnet": "subnet",
    "vol": "volume",
    "vpc": "vpc",
}
# Their ARNs name no account.
_GLOBAL = ("image", "snapshot")
# Action → the kinds it names and those it makes.
ACTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "AssociateIamInstanceProfile": (("instance",), ()),
    "AttachVolume": (("instance", "volume"), ()),
    "AuthorizeSecurityGroupIngress": (("security-group",), ()),
    "CopyImage": (("image",), ("image", "snapshot")),
    "CreateFleet": (("launch-template",), ("fleet",)),
    "CreateImage": (("instance",), ("image", "snapshot")),
    "CreateImageUsageReport": (("image",), ()),
    "CreateKeyPair": ((), ("key-pair",)),
    "CreateLaunchTemplate": ((), ("launch-template",)),
    "CreateLaunchTemplateVersion": (("launch-template",), ()),
    "CreateSecurityGroup": (("vpc",), ("security-group",)),
    "CreateSnapshot": (("volume",), ("snapshot",)),
    "CreateTags": (tuple(_KINDS.values()), ()),
    "CreateVolume": (("snapshot",), ("volume",)),
    "DeleteKeyPair": (("key-pair",), ()),
    "DeleteLaunchTemplate": (("launch-template",), ()),
    "DeleteSecurityGroup": (("security-group",), ()),
    "DeleteSnapshot": (("snapshot",), ()),
    "DeleteTags": (tuple(_KINDS.values()), ()),
    "DeleteVolume": (("volume",), ()),
    "DeregisterImage": (("image",), ()),
    "DescribeInstanceAttribute": (("instance",), ()),
    "DetachVolume": (("instance", "volume"), ()),
    "DisableImage": (("image",), ()),
    "DisableImageDeprecation": (("image",), ()),
    "DisableImageDeregistrationProtection": (("image",), ()),
    "EnableImage": (("image",), ()),
    "EnableImageDeprecation": (("image",), ()),
    "EnableImageDeregistrationProtection": (("image",), ()),
    "GetConsoleOutput": (("instance",), ()),
    "ImportKeyPair": ((), ("key-pair",)),
    "ModifyImageAttribute": (("image",), ()),
    "ModifyInstanceAttribute": (("instance",), ()),
    "ModifyInstanceMetadataOptions": (("instance",), ()),
    "ModifyLaunchTemplate": (("launch-template",), ()),
    "ModifySnapshotAttribute": (("snapshot",), ()),
    "RebootInstances": (("instance",), ()),
    "RunInstances": (
        (
            *("capacity-reservation", "image", "key-pair", "launch-template", "snapshot"),
            *("subnet", "security-group"),
        ),
        ("instance", "volume", "network-interface"),
    ),
    "StartInstances": (("instance",), ()),
    "StopInstances": (("instance",), ()),
    "TerminateInstances": (("instance",), ()),
}
# Parameters of calls that modify a resource, which are not its attributes.
_NO_ATTRIBUTE = ("Action", "Version", "DryRun", "Attribute", "OperationType")
# Parameters whose values are a client's own words, whatever they look like.
_TEXTS = re.compile(r"(TagSpecification\.[0-9]+\.)?Tag\.|(Name|Description|UserData|ClientToken)\b")
# Calls that give an instance a role.
_PASSES = ("AssociateIamInstanceProfile", "ReplaceIamInstanceProfileAssociation", "RunInstances")
# What a launch takes besides what it names: the default subnet and security group.
_ALWAYS = {"RunInstances": ("subnet", "security-group")}


@dataclass(frozen=True)
class Resource:
    """What conditions see of a resource that exists: its tags; of an image or a snapshot its owner,
    as `amazon` or an account's id; of an instance profile, and of a launch template's version, the
    ARNs of the roles that an instance gets; of a key of KMS its id."""

    tags: Mapping[str, str] = field(default_factory=dict)
    owner: str | None = None
    roles: tuple[str, ...] = ()
    id: str | None = None


# A resource by kind, id (of a key pair and a profile: its name; of a launch template's version:
# `template/version`, with the id or the name) and region.
Look = Callable[[str, str, str], Resource]


@dataclass(frozen=True)
class Permission:
    """One question; `resource` is None where the lab does not know what the call concerns."""

    action: str
    resource: str | None
    context: dict[str, str | list[str]] = field(default_factory=dict)


def permissions(
    action: str, parameters: Mapping[str, str], region: str, account: str, look: Look
) -> Iterator[Permission]:
    """What IAM is asked about a call of EC2."""
    yield from _itself(action, parameters, region, account, look)
    if action in _PASSES:
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/permission-to-pass-iam-roles.html
        for role in _passed(parameters, region, look):
            yield Permission("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})


def _itself(
    action: str, parameters: Mapping[str, str], region: str, account: str, look: Look
) -> Iterator[Permission]:
    here: dict[str, str | list[str]] = {"ec2:Region": region}
    if action not in ACTIONS:
        # Nearly all questions about EC2 have no resources.
        lists = action.startswith("Describe")
        yield Permission(f"ec2:{action}", "*" if lists else None, here)
        return
    named, made = ACTIONS[action]
    named_resources = {(kind, name) for kind, name in _named(parameters) if kind in named}
    named_resources |= {
        (kind, "*")
        for kind in _ALWAYS.get(action, ())
        if kind not in {kind for kind, _ in named_resources}
    }
    if not named_resources and not made:
        yield Permission(f"ec2:{action}", None, here)
    own = _own_tags(parameters) if action in ("CreateTags", "DeleteTags") else {}
    for kind, name in sorted(named_resources):
        there = look(kind, name, region)
        more = {**here, **_of_resource(there.tags), **_of_request(own)}
        if there.owner:
            more["ec2:Owner"] = there.owner
        if action.startswith("Modify"):
            more |= _changed(parameters)
        if kind in ("image", "instance"):
            more["ec2:ImageID" if kind == "image" else "ec2:InstanceID"] = name
        yield Permission(f"ec2:{action}", arn(kind, name, region, account), more)
    specified = _specified(parameters)
    for kind in made:
        name = parameters.get("KeyName", "*") if kind == "key-pair" else "*"
        new = specified.get(kind, {})
        more = {**here, **_of_request(new)}
        if kind == "instance" and "InstanceType" in parameters:
            more["ec2:InstanceType"] = parameters["InstanceType"]
        yield Permission(f"ec2:{action}", arn(kind, name, region, account), more)
        if new:
            more["ec2:CreateAction"] = action
            yield Permission("ec2:CreateTags", arn(kind, name, region, account), more)


def arn(kind: str, name: str, region: str, account: str) -> str:
    """The ARN of a resource of EC2."""
    return f"arn:aws:ec2:{region}:{'' if kind in _GLOBAL else account}:{kind}/{name}"


def _passed(parameters: Mapping[str, str], region: str, look: Look) -> tuple[str, ...]:
    """The roles that an instance gets by a call: those of the profile that it names, or of the one
    in its launch template."""
    profile = parameters.get("IamInstanceProfile.Name") or parameters.get("IamInstanceProfile.Arn")
    if profile:
        return look("instance-profile", profile.rpartition("/")[2], region).roles
    template = "LaunchTemplate.LaunchTemplate"
    named = parameters.get(f"{template}Id") or parameters.get(f"{template}Name")
    if not named:
        return ()
    version = parameters.get("LaunchTemplate.Version", "$Default")
    return look("launch-template-version", f"{named}/{version}", region).roles


def _changed(parameters: Mapping[str, str]) -> dict[str, str | list[str]]:
    """The attributes that a call sets: HttpTokens=required, Description.Value=… and the like."""
    changed: dict[str, str | list[str]] = {}
    for key, value in parameters.items():
        name, _, rest = key.partition(".")
        if name not in _NO_ATTRIBUTE and not name.endswith("Id") and rest in ("", "Value"):
            changed[f"ec2:Attribute/{name}"] = value
    return changed


def _named(parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in parameters.items():
        shape = re.fullmatch(r"([a-z]+)-[0-9a-f]{8,17}", value)
        if _TEXTS.match(key):
            continue  # a tag that holds the id of a parent AMI does not concern that AMI
        if shape and shape[1] in _KINDS:
            yield _KINDS[shape[1]], value
        elif key == "KeyName":
            yield "key-pair", value
        elif key.endswith("LaunchTemplateName"):
            yield "launch-template", "*"


def _own_tags(parameters: Mapping[str, str]) -> dict[str, str]:
    return {
        value: parameters.get(f"Tag.{key.split('.')[1]}.Value", "")
        for key, value in parameters.items()
        if re.fullmatch(r"Tag\.[0-9]+\.Key", key)
    }


def _specified(parameters: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Kind → the tags that a call gives what it makes."""
    specified: dict[str, dict[str, str]] = {}
    for key, value in parameters.items():
        at = re.fullmatch(r"(TagSpecification\.[0-9]+)\.Tag\.([0-9]+)\.Key", key)
        if at:
            kind = parameters.get(f"{at[1]}.ResourceType", "")
            text = parameters.get(f"{at[1]}.Tag.{at[2]}.Value", "")
            specified.setdefault(kind, {})[value] = text
    return specified


def _of_request(tags: Mapping[str, str]) -> dict[str, str | list[str]]:
    if not tags:
        return {}
    return {"aws:TagKeys": list(tags), **{f"aws:RequestTag/{k}": v for k, v in tags.items()}}


def _of_resource(tags: Mapping[str, str]) -> dict[str, str | list[str]]:
    return {
        f"{service}:ResourceTag/{name}": value
        for name, value in tags.items()
        for service in ("aws", "ec2")
    }
