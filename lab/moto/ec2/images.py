"""DescribeImages, the life of an AMI after it is made, and its attributes.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeImages.html
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from moto.core.utils import utcnow

from lab.moto import volume_keys
from lab.moto.ec2 import filters
from lab.moto.ec2.calls import Request, call, error, missing

_TIME = "%Y-%m-%dT%H:%M:%S.000Z"
_COOLING = "disabled after "


def find(backend: Any, image_id: str) -> Any:
    """An AMI that the account may see. Raises EC2's error when there is none."""
    ami = backend.amis.get(image_id)
    if ami is not None:
        return ami
    if image_id in backend.deleted_amis:
        raise error("InvalidAMIID.Unavailable", f"The image ID '{image_id}' is no longer available")
    raise error("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")


def own(backend: Any, image_id: str) -> Any:
    """An AMI of the account itself, which it may change."""
    ami = find(backend, image_id)
    if ami.owner_id != backend.account_id:
        raise error("AuthFailure", f"Not authorized for image:{image_id}")
    return ami


@call("DescribeImages")
def _describe(request: Request) -> dict[str, Any]:
    backend, parameters = request.backend, request.parameters
    amis = list(backend.amis.values())
    wanted = parameters.get("ImageIds") or []
    if wanted:
        amis = _by_id(backend, wanted)
    owners = parameters.get("Owners") or []
    if owners:
        owners = [backend.account_id if owner == "self" else owner for owner in owners]
        amis = [ami for ami in amis if ami.owner_id in owners or ami.owner_alias in owners]
    if parameters.get("ExecutableUsers"):
        raise error("UnsupportedOperation", "AMI Kiln lab: DescribeImages has no ExecutableUsers")
    if not parameters.get("IncludeDisabled"):
        amis = [ami for ami in amis if ami.state != "disabled"]
    # Who names an AMI by its id sees it, deprecated or not; so does its owner.
    # https://github.com/hashicorp/packer-plugin-amazon/issues/261
    if not (parameters.get("IncludeDeprecated") or wanted):
        amis = [ami for ami in amis if ami.owner_id == backend.account_id or not _is_past(ami)]
    chosen = parameters.get("Filters") or []
    if chosen:
        amis = filters.keep("DescribeImages", amis, chosen)
    return {"Images": amis}


def _is_past(ami: Any) -> bool:
    """Return True if an AMI is deprecated."""
    at = getattr(ami, "deprecation_time", None)
    return bool(at and datetime.strptime(at, _TIME) <= utcnow().replace(tzinfo=None))


def _by_id(backend: Any, wanted: list[str]) -> list[Any]:
    """The AMIs of these ids.

    A deregistered one is left out while an instance of it exists, and does not exist afterwards.
    """
    still = {
        instance.image_id for instance in backend.all_instances() if instance.state != "terminated"
    }
    unknown = [
        image_id
        for image_id in wanted
        if image_id not in backend.amis
        and not (image_id in backend.deleted_amis and image_id in still)
    ]
    if unknown:
        shown = ", ".join(unknown)
        ids, verb = ("ids", "do") if len(unknown) > 1 else ("id", "does")
        raise error("InvalidAMIID.NotFound", f"The image {ids} '[{shown}]' {verb} not exist")
    amis = (backend.amis.get(image_id) for image_id in dict.fromkeys(wanted))
    return [ami for ami in amis if ami is not None]


# Attribute in the request: its name in the answer, and the AMI's attribute.
_ATTRIBUTES = {
    "description": ("Description", "description"),
    "bootMode": ("BootMode", "boot_mode"),
    "lastLaunchedTime": ("LastLaunchedTime", "last_launched_time"),
    "imdsSupport": ("ImdsSupport", "imds_support"),
    "deregistrationProtection": ("DeregistrationProtection", "deregistration_protection"),
}


@call("DescribeImageAttribute")
def _attribute(request: Request) -> dict[str, Any]:
    name = request.parameters["Attribute"]
    ami = own(request.backend, request.parameters["ImageId"])
    if name == "launchPermission":
        return {"ImageId": ami.id, "LaunchPermissions": ami.launch_permissions}
    if name not in _ATTRIBUTES:
        raise error("UnsupportedOperation", f"AMI Kiln lab: there is no attribute {name}")
    shown, attribute = _ATTRIBUTES[name]
    value = getattr(ami, attribute, None)
    if attribute == "deregistration_protection":
        value = value or "disabled"
    return {"ImageId": ami.id, shown: {} if value is None else {"Value": value}}


@call("ModifyImageAttribute")
def _modify(request: Request) -> None:
    parameters = request.parameters
    ami = own(request.backend, parameters["ImageId"])
    add, remove = _permissions(parameters)
    description = parameters.get("Description")
    if parameters.get("Attribute") == "description":
        description = {"Value": parameters.get("Value", "")}
    imds = parameters.get("ImdsSupport")
    if parameters.get("Attribute") == "imdsSupport":
        imds = {"Value": parameters.get("Value")}
    if not (add or remove or description or imds):
        raise error("InvalidParameterCombination", "No attributes specified.")
    if add or remove:
        request.backend.validate_permission_targets([*add, *remove])
        _share(request.backend, ami, add, remove)
    if description is not None:
        ami.description = description.get("Value", "")
    if imds is not None:
        if imds.get("Value") != "v2.0":
            raise error("InvalidParameterValue", "The only value for imdsSupport is v2.0")
        ami.imds_support = "v2.0"


def _permissions(parameters: dict[str, Any]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The launch permissions to add and to remove, from both forms of the call.

    Packer's amazon plugin 1.8.2 sends both, and the short one without OperationType
    (hashicorp/packer-plugin-amazon, common/step_modify_ami_attributes.go): EC2 takes that.
    """
    changes = parameters.get("LaunchPermission") or {}
    add, remove = list(changes.get("Add", [])), list(changes.get("Remove", []))
    operation = parameters.get("OperationType")
    short = [{"Group": group} for group in parameters.get("UserGroups") or []]
    short += [{"UserId": user} for user in parameters.get("UserIds") or []]
    for name in ("OrganizationArn", "OrganizationalUnitArn"):
        short += [{name: arn} for arn in parameters.get(f"{name}s") or []]
    if operation in ("add", "remove"):
        (add if operation == "add" else remove).extend(short)
    elif short and not changes:
        raise missing("OperationType")
    return add, remove


def _share(backend: Any, ami: Any, add: list[dict[str, str]], remove: list[dict[str, str]]) -> None:
    if add and ami.state == "disabled":
        raise error("InvalidAMIID.Unavailable", f"The image ID '{ami.id}' is disabled")
    keys = [
        backend.snapshots[device["Ebs"]["SnapshotId"]].kms_key_id
        for device in ami.block_device_mappings
        if device["Ebs"].get("SnapshotId") in backend.snapshots
    ]
    if add and any(volume_keys.is_awss_own(backend, key) for key in keys):
        # https://github.com/hashicorp/packer/issues/7410
        raise error(
            "InvalidParameter",
            "Snapshots encrypted with the AWS Managed CMK can't be shared. Specify another "
            "snapshot.",
        )
    if any(permission.get("Group") == "all" for permission in add):
        # As of a new account:
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/block-public-access-to-amis.html
        raise error(
            "OperationNotPermitted",
            "You cannot publicly share this image: block public access for AMIs is enabled in "
            "this Region",
        )
    for permission in add:
        if permission not in ami.launch_permissions:
            ami.launch_permissions.append(permission)
    ami.launch_permissions[:] = [
        permission for permission in ami.launch_permissions if permission not in remove
    ]


@call("EnableImageDeprecation")
def _deprecate(request: Request) -> dict[str, Any]:
    ami = own(request.backend, request.parameters["ImageId"])
    when = request.parameters["DeprecateAt"]
    if isinstance(when, str):
        when = datetime.strptime(when[:19], "%Y-%m-%dT%H:%M:%S")
    when, now = when.replace(tzinfo=None), utcnow().replace(tzinfo=None)
    # The reference of EnableImageDeprecation: not in the past, 10 years at most, of a public AMI 2
    # years after its creation; seconds are rounded to the nearest minute.
    latest = now + timedelta(days=3653)
    if ami.is_public:
        latest = ami.creation_date.replace(tzinfo=None) + timedelta(days=731)
    if when < now - timedelta(minutes=1):
        raise error("InvalidParameterValue", "The deprecation time cannot be in the past.")
    if when > latest:
        raise error(
            "InvalidParameterValue", f"The deprecation time cannot be after {latest:{_TIME}}"
        )
    rounded = (when + timedelta(seconds=30)).replace(second=0, microsecond=0)
    ami.deprecation_time = rounded.strftime(_TIME)
    return {"Return": True}


@call("DisableImageDeprecation")
def _undeprecate(request: Request) -> dict[str, Any]:
    own(request.backend, request.parameters["ImageId"]).deprecation_time = None
    return {"Return": True}


@call("EnableImageDeregistrationProtection")
def _protect(request: Request) -> dict[str, Any]:
    ami = own(request.backend, request.parameters["ImageId"])
    cooldown = request.parameters.get("WithCooldown")
    ami.deregistration_protection = (
        "enabled-with-cooldown" if cooldown else "enabled-without-cooldown"
    )
    return {"Return": "true"}


@call("DisableImageDeregistrationProtection")
def _unprotect(request: Request) -> dict[str, Any]:
    """With a cooldown the AMI is protected for another day. How EC2 writes it is assumed.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ami-deregistration-protection.html
    """
    ami = own(request.backend, request.parameters["ImageId"])
    before = getattr(ami, "deregistration_protection", None)
    if before == "enabled-with-cooldown":
        ami.deregistration_protection = f"{_COOLING}{utcnow() + timedelta(days=1):{_TIME}}"
    elif not (before or "").startswith(_COOLING):
        ami.deregistration_protection = "disabled"
    return {"Return": "true"}


def _is_protected(ami: Any) -> bool:
    state = getattr(ami, "deregistration_protection", None) or "disabled"
    if state.startswith(_COOLING):
        until = datetime.strptime(state.removeprefix(_COOLING), _TIME)
        return bool(utcnow().replace(tzinfo=None) < until)
    return bool(state.startswith("enabled"))


@call("DisableImage")
def _disable(request: Request) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/disable-an-ami.html"""
    ami = own(request.backend, request.parameters["ImageId"])
    if ami.state not in ("available", "disabled"):
        raise error("InvalidAMIID.Unavailable", f"The image ID '{ami.id}' is {ami.state}")
    ami.state = "disabled"
    ami.launch_permissions.clear()
    return {"Return": True}


@call("DeregisterImage")
def _deregister(request: Request) -> dict[str, Any]:
    backend, image_id = request.backend, request.parameters["ImageId"]
    ami = find(backend, image_id)
    if ami.owner_id != backend.account_id:
        raise error("AuthFailure", f"Not authorized for images: [{image_id}]")
    if _is_protected(ami):
        raise error(
            "OperationNotPermitted",
            "The AMI is protected: disable its deregistration protection first",
        )
    snapshots = [
        device["Ebs"]["SnapshotId"]
        for device in ami.block_device_mappings
        if "SnapshotId" in device["Ebs"]
    ]
    backend.deregister_image(image_id)
    result: dict[str, Any] = {"Return": True}
    if request.parameters.get("DeleteAssociatedSnapshots"):
        others = {
            device["Ebs"].get("SnapshotId")
            for other in list(backend.amis.values())
            for device in other.block_device_mappings
        }
        result["DeleteSnapshotResults"] = [
            {"SnapshotId": snapshot, "ReturnCode": _delete_snapshot(backend, snapshot, others)}
            for snapshot in snapshots
        ]
    return result


def _delete_snapshot(backend: Any, snapshot_id: str, in_use: set[Any]) -> str:
    """The reference of DeregisterImage: a snapshot of several AMIs is skipped."""
    if snapshot_id in in_use:
        return "skipped"
    backend.snapshots.pop(snapshot_id, None)
    return "success"
