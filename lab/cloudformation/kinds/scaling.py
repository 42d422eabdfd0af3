"""AWS::AutoScaling: a group of instances, and its rolling update."""

from __future__ import annotations

import time
from typing import Any

from lab.cloudformation.errors import ResourceError
from lab.cloudformation.kinds.kind import Kind, Made, Place, Properties, words

_PATIENCE = 300
_ROLLING = "AutoScalingRollingUpdate"


def _sizes(properties: Properties) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        key: int(properties[key])
        for key in ("MinSize", "MaxSize", "DesiredCapacity")
        if key in properties
    }
    template = properties["LaunchTemplate"]
    sizes["LaunchTemplate"] = {**template, "Version": str(template["Version"])}
    sizes["VPCZoneIdentifier"] = ",".join(properties["VPCZoneIdentifier"])
    protected = properties.get("NewInstancesProtectedFromScaleIn", False)
    return sizes | {"NewInstancesProtectedFromScaleIn": str(protected).lower() == "true"}


def _group(place: Place, name: str, properties: Properties) -> Made:
    _require_implemented(properties)
    group = properties.get("AutoScalingGroupName") or place.new_name(name)
    tags = [
        {**tag, "Value": str(tag["Value"]), "ResourceId": group, "ResourceType": _TYPE}
        for tag in properties.get("Tags", [])
    ]
    place.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=group, Tags=tags, **_sizes(properties)
    )
    return Made(group, {"template": _sizes(properties)["LaunchTemplate"]})


_TYPE = "auto-scaling-group"


def _changed(place: Place, made: Made, properties: Properties) -> Made:
    """As of CloudFormation: instances stay, unless the policy says that they are replaced."""
    _require_implemented(properties)
    scaling = place.client("autoscaling")
    scaling.update_auto_scaling_group(AutoScalingGroupName=made.id, **_sizes(properties))
    template = _sizes(properties)["LaunchTemplate"]
    if template != made.attributes["template"] and _ROLLING in properties.get("UpdatePolicy", {}):
        before = _instances(place, made.id)
        for instance in before:
            scaling.terminate_instance_in_auto_scaling_group(
                InstanceId=instance, ShouldDecrementDesiredCapacity=False
            )
        if before:
            scaling.set_desired_capacity(
                AutoScalingGroupName=made.id, DesiredCapacity=len(before), HonorCooldown=False
            )
    return Made(made.id, {"template": template})


def _gone(place: Place, made: Made) -> None:
    instances = _instances(place, made.id)
    place.client("autoscaling").delete_auto_scaling_group(
        AutoScalingGroupName=made.id, ForceDelete=True
    )
    end = time.monotonic() + _PATIENCE
    while instances and time.monotonic() < end:
        reservations = place.client("ec2").describe_instances(InstanceIds=instances)["Reservations"]
        states = {
            each["State"]["Name"]
            for reservation in reservations
            for each in reservation["Instances"]
        }
        if states == {"terminated"}:
            return
        time.sleep(0.2)
    if instances:
        raise ResourceError(f"{made.id}: its instances are not terminated after {_PATIENCE} s")


def _instances(place: Place, group: str) -> list[str]:
    groups = place.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])
    return [
        each["InstanceId"]
        for entry in groups["AutoScalingGroups"]
        for each in entry.get("Instances", [])
    ]


def _require_implemented(properties: Properties) -> None:
    """Raises ResourceError for an update policy that the lab does not do."""
    policy = properties.get("UpdatePolicy", {})
    rolling = policy.get(_ROLLING, {})
    extra = {*policy} - {_ROLLING} | {*rolling} - {"MinInstancesInService"}
    if extra or int(rolling.get("MinInstancesInService", 0)):
        named = ", ".join(sorted(extra)) or "MinInstancesInService above 0"
        raise ResourceError(f"AMI Kiln lab: {named} of UpdatePolicy is not implemented")


KINDS = {
    "AWS::AutoScaling::AutoScalingGroup": Kind(
        _group,
        _gone,
        words(
            "AutoScalingGroupName MinSize MaxSize DesiredCapacity VPCZoneIdentifier LaunchTemplate",
            "Tags NewInstancesProtectedFromScaleIn UpdatePolicy",
        ),
        _changed,
        words("AutoScalingGroupName"),
    ),
}
