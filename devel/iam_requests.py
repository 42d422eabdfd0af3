"""From the API calls of a build to what IAM is asked: action, resource and context of each check.

One call is several checks: RunInstances is allowed on the instance, its volume, its AMI and more.
Which resources and keys an action has: the Service Authorization Reference for EC2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kiln.base.paths import ROOT

DATA = ROOT / "tests" / "data" / "iam"
ACCOUNT = "123456789012"
REGION = "us-east-1"
Call = dict[str, str]
Check = dict[str, Any]

# Their ARNs name no account.
_GLOBAL = {"image", "snapshot"}
# A parameter that names a resource → the resource's kind.
_NAMED = {
    "ImageId": "image",
    "SnapshotId": "snapshot",
    "VolumeId": "volume",
    "GroupId": "security-group",
    "KeyName": "key-pair",
    "InstanceId.1": "instance",
    "InstanceId": "instance",
}
_KINDS = {"ami": "image", "snap": "snapshot", "vol": "volume", "sg": "security-group"}


def recorded() -> list[Call]:
    """The EC2 calls of a build with Packer's plugin, and of the removal of its AMI as after a
    failure: parameters as they were sent, of each Describe call only its name."""
    return [json.loads(line) for line in (DATA / "calls.jsonl").read_text().splitlines()]


def checks(calls: Sequence[Call]) -> list[Check]:
    """Return the questions to IAM for these calls, each question once."""
    tags_of: dict[str, dict[str, str]] = {}
    every = [check for call in calls for check in _checks(call, tags_of)]
    return list({json.dumps(check, sort_keys=True): check for check in every}.values())


def check(action: str, kind: str, **context: str) -> Check:
    """One question: `kind` is a resource type, or * for none."""
    account = "" if kind in _GLOBAL else ACCOUNT
    arn = "*" if kind == "*" else f"arn:aws:ec2:{REGION}:{account}:{kind}/{kind}-1"
    where = {"aws:RequestedRegion": REGION, "aws:PrincipalAccount": ACCOUNT}
    return {"action": f"ec2:{action}", "arn": arn, "context": {**where, **context}}


def _checks(call: Call, tags_of: dict[str, dict[str, str]]) -> Iterator[Check]:
    """The questions of a call; `tags_of` has those of each resource so far."""
    action = call["Action"]
    if action.startswith("Describe"):
        yield check(action, "*")
    elif action == "CreateTags":
        for name, resource in call.items():
            if name.startswith("ResourceId."):
                new = _tags(call, "Tag.")
                yield check(
                    action,
                    _kind(resource),
                    **_context("RequestTag", new),
                    **_context("ResourceTag", tags_of.get(resource, tags_of[_kind(resource)])),
                    **_owner(_kind(resource)),
                )
                tags_of.setdefault(resource, {}).update(new)
    elif action in ("CreateKeyPair", "CreateSecurityGroup"):
        kind = {"CreateKeyPair": "key-pair"}.get(action, "security-group")
        new = _specified(call, kind)
        yield check(action, kind, **_context("RequestTag", new))
        yield from _tagged_at(action, kind, new)
        if kind == "security-group":
            yield check(action, "vpc")
        tags_of[call.get("KeyName", "group")] = new
    elif action == "RunInstances":
        yield from _launched(call, tags_of)
    elif action == "CreateImage":
        yield check(action, "instance", **_context("ResourceTag", tags_of["instance"]))
        for kind in ("image", "snapshot"):
            new = _specified(call, kind)
            yield check(action, kind, **_context("RequestTag", new))
            yield from _tagged_at(action, kind, new)
            tags_of[kind] = new
    else:
        yield from _changed(call, tags_of)


def _launched(call: Call, tags_of: dict[str, dict[str, str]]) -> Iterator[Check]:
    # The first launch is from Amazon's parent AMI, what comes after CreateImage from its AMI.
    image = tags_of.get(call["ImageId"], tags_of.get("image"))
    owner = "amazon" if image is None else ACCOUNT
    for kind in ("instance", "volume"):
        new = _specified(call, kind)
        more = {"ec2:InstanceType": call["InstanceType"]} if kind == "instance" else {}
        yield check("RunInstances", kind, **_context("RequestTag", new), **more)
        yield from _tagged_at("RunInstances", kind, new)
        tags_of[kind] = new
    own = _context("ResourceTag", image or {})
    yield check("RunInstances", "image", **{"ec2:Owner": owner}, **own)
    for kind, key in (("key-pair", call["KeyName"]), ("security-group", "group")):
        yield check("RunInstances", kind, **_context("ResourceTag", tags_of[key]))
    for kind in ("network-interface", "subnet"):
        yield check("RunInstances", kind)


def _changed(call: Call, tags_of: dict[str, dict[str, str]]) -> Iterator[Check]:
    """A call that changes or removes one resource."""
    kind = next(kind for name, kind in _NAMED.items() if name in call)
    tags = tags_of.get(_key(call, kind), tags_of.get(kind, {}))
    if kind == "security-group":
        tags = tags_of["group"]
    attributes = {
        f"ec2:Attribute/{name.removesuffix('.Value')}": value
        for name, value in call.items()
        if name.endswith(".Value") and call["Action"] == "ModifyImageAttribute"
    }
    yield check(call["Action"], kind, **_context("ResourceTag", tags), **attributes)


def _key(call: Call, kind: str) -> str:
    return next(value for name, value in call.items() if _NAMED.get(name) == kind)


def _tagged_at(action: str, kind: str, tags: dict[str, str]) -> Iterator[Check]:
    """CreateTags, which EC2 asks for besides a call that makes a resource with tags."""
    if tags:
        more = {"ec2:CreateAction": action}
        yield check("CreateTags", kind, **_context("RequestTag", tags), **more)


def _specified(call: Call, kind: str) -> dict[str, str]:
    for name, value in call.items():
        if name.endswith(".ResourceType") and value == kind:
            return _tags(call, name.removesuffix("ResourceType") + "Tag.")
    return {}


def _tags(call: Call, prefix: str) -> dict[str, str]:
    pattern = re.compile(rf"{re.escape(prefix)}([0-9]+)\.Key")
    return {
        value: call[f"{prefix}{match[1]}.Value"]
        for name, value in call.items()
        if (match := pattern.fullmatch(name))
    }


def _context(key: str, tags: dict[str, str]) -> dict[str, str]:
    """The only tag that the policy asks for."""
    return {f"aws:{key}/{name}": value for name, value in tags.items() if name == "kiln:run-id"}


def _owner(kind: str) -> dict[str, str]:
    return {"ec2:Owner": ACCOUNT} if kind in _GLOBAL else {}


def _kind(resource: str) -> str:
    return _KINDS.get(resource.split("-", maxsplit=1)[0], "instance")


OTHERS = {"ec2:Owner": ACCOUNT}
OWN = {"aws:ResourceTag/kiln:run-id": "20261122T230837Z-a54b"}
NEW = {"aws:RequestTag/kiln:run-id": "20261122T230837Z-a54b"}
SHARE = {"ec2:Attribute": "LaunchPermission"}
ATTACKS: dict[str, Check] = {
    "tag any AMI": check("CreateTags", "image", **NEW, **OTHERS),
    "tag any snapshot": check("CreateTags", "snapshot", **NEW, **OTHERS),
    "tag any instance": check("CreateTags", "instance", **NEW),
    "tag any volume": check("CreateTags", "volume", **NEW),
    "tag any AMI with something else": check("CreateTags", "image", **OTHERS),
    "delete any AMI": check("DeregisterImage", "image", **OTHERS),
    "delete any snapshot": check("DeleteSnapshot", "snapshot", **OTHERS),
    "delete any volume": check("DeleteVolume", "volume"),
    "delete any key pair": check("DeleteKeyPair", "key-pair"),
    "delete any launch template": check("DeleteLaunchTemplate", "launch-template"),
    "delete any security group": check("DeleteSecurityGroup", "security-group"),
    "open any security group": check("AuthorizeSecurityGroupIngress", "security-group"),
    "share any AMI": check("ModifyImageAttribute", "image", **SHARE, **OTHERS),
    "share an AMI of a run": check("ModifyImageAttribute", "image", **SHARE, **OWN, **OTHERS),
    "describe any AMI": check(
        "ModifyImageAttribute", "image", **{"ec2:Attribute/Description": "x"}, **OTHERS
    ),
    "weaken IMDS of an AMI of a run": check(
        "ModifyImageAttribute", "image", **{"ec2:Attribute/ImdsSupport": ""}, **OWN, **OTHERS
    ),
    "freeze any instance": check("CreateImage", "instance"),
    "freeze without a tag": check("CreateImage", "image"),
    "terminate any instance": check("TerminateInstances", "instance"),
    "stop any instance": check("StopInstances", "instance"),
    "launch without a tag": check(
        "RunInstances", "instance", **{"ec2:InstanceType": "g4dn.xlarge"}
    ),
    "launch a type without a GPU": check(
        "RunInstances", "instance", **{"ec2:InstanceType": "x1e.32xlarge"}, **NEW
    ),
    "launch a stranger's AMI": check("RunInstances", "image", **{"ec2:Owner": "999999999999"}),
    "launch any AMI of the account": check("RunInstances", "image", **OTHERS),
    "launch with any key pair": check("RunInstances", "key-pair"),
    "launch with any security group": check("RunInstances", "security-group"),
    "launch in another region": check(
        "RunInstances",
        "instance",
        **{"ec2:InstanceType": "g4dn.xlarge", "aws:RequestedRegion": "sa-east-1", **NEW},
    ),
}


def _for_cloudformation(check: Check) -> Check:
    """The same call, made by CloudFormation for the holder of the policy."""
    called_via = {"aws:CalledVia": ["cloudformation.amazonaws.com"]}
    return {**check, "context": {**check["context"], **called_via}}


COPY = {"aws:RequestTag/kiln:source-image": "us-east-1 ami-0123456789abcdef0", **NEW}
# On the tasks besides builds.
MORE_ATTACKS: dict[str, Check] = {
    **ATTACKS,
    "take any AMI for one's own by copying it": check("CopyImage", "image", **COPY, **OTHERS),
    "copy without a tag": check("CopyImage", "image", **OTHERS),
    "tag any AMI as if it were copied": check("CreateTags", "image", **COPY, **OTHERS),
    "share any snapshot": check("ModifySnapshotAttribute", "snapshot", **OTHERS),
    "deprecate any AMI": check("EnableImageDeprecation", "image", **OTHERS),
    "disable any AMI": check("DisableImage", "image", **OTHERS),
    **{
        f"{name}, by CloudFormation": _for_cloudformation(ATTACKS[name])
        for name in (
            *("tag any AMI", "tag any snapshot", "tag any instance"),
            *("delete any AMI", "delete any snapshot", "share any AMI", "terminate any instance"),
        )
    },
}
# What each of them may do all the same: docs/security.md, What remains.
OPENED: dict[str, set[str]] = {
    "publish": {
        "share an AMI of a run",
        "weaken IMDS of an AMI of a run",
        # CopyImage has no condition key for the tags of the AMI that is copied.
        "take any AMI for one's own by copying it",
    },
    "promote": set(),
    "retire": set(),
    "stack": set(),
    "fleet": set(),
}


def questions() -> list[Check]:
    """Everything that the simulator is asked."""
    every = [*checks(recorded()), *MORE_ATTACKS.values()]
    return list({json.dumps(call, sort_keys=True): call for call in every}.values())
