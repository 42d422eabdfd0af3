"""Plain EC2: a launch template, an Auto Scaling group, a command."""

from __future__ import annotations

import shlex
from typing import Any

from kiln.consume.documents import as_json, ref, stack, text_parameter
from kiln.consume.machine import instance_tags, launch_data, metadata_options, pairs
from kiln.consume.wanted import Wanted

SUBNETS = {"Type": "List<AWS::EC2::Subnet::Id>", "Description": "where instances start"}
GROUPS = {
    "Type": "List<AWS::EC2::SecurityGroup::Id>",
    "Description": "with EFA they must allow all traffic within themselves",
}
SIZE = {"Type": "Number", "Default": 1, "MinValue": 0}
PROFILE = text_parameter(
    "name of an instance profile, such as that of stack.deploy; empty for none", ""
)
RESERVATION = text_parameter("id of a capacity reservation or block (cr-…); empty for none", "")
PLACEMENT = text_parameter("name of a placement group; empty for none", "")
CONDITIONS = {
    name: {"Fn::Not": [{"Fn::Equals": [ref(parameter), ""]}]}
    for name, parameter in (
        ("HasProfile", "InstanceProfile"),
        ("HasReservation", "CapacityReservation"),
        ("HasPlacement", "PlacementGroup"),
    )
}


def template_resource(wanted: Wanted, image: Any, **more: Any) -> dict[str, Any]:
    """AWS::EC2::LaunchTemplate with the parameters of `optional`."""
    none = {"Ref": "AWS::NoValue"}

    def only(condition: str, value: Any) -> dict[str, Any]:
        return {"Fn::If": [condition, value, none]}

    reserved = {"CapacityReservationTarget": {"CapacityReservationId": ref("CapacityReservation")}}
    data = launch_data(
        wanted,
        image,
        groups=ref("SecurityGroups"),
        IamInstanceProfile=only("HasProfile", {"Name": ref("InstanceProfile")}),
        Placement=only("HasPlacement", {"GroupName": ref("PlacementGroup")}),
        CapacityReservationSpecification=only("HasReservation", reserved),
        **more,
    )
    return {
        "Type": "AWS::EC2::LaunchTemplate",
        "Properties": {"LaunchTemplateName": wanted.name, "LaunchTemplateData": data},
    }


def optional() -> dict[str, Any]:
    """The parameters that a launch template's resource reads."""
    return {
        "SecurityGroups": GROUPS,
        "InstanceProfile": PROFILE,
        "CapacityReservation": RESERVATION,
        "PlacementGroup": PLACEMENT,
    }


def launch_template(wanted: Wanted) -> str:
    """A CloudFormation template with the launch template alone."""
    return stack(
        wanted,
        "launch template; every launch resolves the channel anew",
        parameters=optional(),
        conditions=CONDITIONS,
        resources={"LaunchTemplate": template_resource(wanted, wanted.image)},
        outputs={"LaunchTemplate": ref("LaunchTemplate")},
    )


def launch_template_json(wanted: Wanted) -> str:
    """What `aws ec2 create-launch-template --cli-input-json file://…` takes."""
    made = {
        "LaunchTemplateName": wanted.name,
        "VersionDescription": f"{wanted.line} {wanted.channel}",
        "LaunchTemplateData": launch_data(wanted, wanted.image, groups=["sg-0123456789abcdef0"]),
    }
    return as_json(made)


def scaling_group(wanted: Wanted) -> str:
    """A group of instances that gets the channel's image when the stack is updated."""
    parameters, image = looked_up(wanted)
    return stack(
        wanted,
        "Auto Scaling group; an update of the stack takes the channel's image of that moment",
        parameters={
            **parameters,
            **optional(),
            "Subnets": SUBNETS,
            "Size": SIZE,
        },
        conditions=CONDITIONS,
        resources={
            "LaunchTemplate": template_resource(wanted, image),
            "Group": {
                "Type": "AWS::AutoScaling::AutoScalingGroup",
                "UpdatePolicy": {"AutoScalingRollingUpdate": {"MinInstancesInService": 0}},
                "Properties": group("Size", "Size", "Size"),
            },
        },
        outputs={"Group": ref("Group")},
    )


def looked_up(wanted: Wanted) -> tuple[dict[str, Any], Any]:
    """A template's parameter by which CloudFormation looks the image up in the channel at each
    update (none for a pinned one), and the image.

    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-supplied-parameter-types.html
    """
    if wanted.image_id:
        return {}, wanted.image_id
    kind = "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
    return {"Image": {"Type": kind, "Default": wanted.parameter}}, ref("Image")


def group(least: str, size: str, most: str) -> dict[str, Any]:
    """An Auto Scaling group of the launch template's latest version, sized by three parameters."""
    return {
        "MinSize": ref(least),
        "DesiredCapacity": ref(size),
        "MaxSize": ref(most),
        "VPCZoneIdentifier": ref("Subnets"),
        "LaunchTemplate": {
            "LaunchTemplateId": ref("LaunchTemplate"),
            "Version": {"Fn::GetAtt": ["LaunchTemplate", "LatestVersionNumber"]},
        },
    }


def command_line(wanted: Wanted) -> str:
    """A command that launches one instance."""
    options = ",".join(f"{key}={value}" for key, value in metadata_options().items())
    named = ",".join(
        f"{{Key={pair['Key']},Value={pair['Value']}}}" for pair in pairs(instance_tags(wanted))
    )
    words = [
        f"--region {wanted.region}",
        f"--image-id {shlex.quote(wanted.image)}",
        f"--instance-type {wanted.instance_type.type}",
        f"--metadata-options {shlex.quote(options)}",
        f"--tag-specifications {shlex.quote(f'ResourceType=instance,Tags=[{named}]')}",
        '--subnet-id "$SUBNET" --security-group-ids "$GROUP" --key-name "$KEY"',
    ]
    return (
        "#!/bin/bash\n"
        f"# One {wanted.instance_type.type} of {wanted.line}, channel {wanted.channel}.\n"
        "# Set SUBNET, GROUP and KEY first.\n"
        "set -euo pipefail\n"
        "aws ec2 run-instances " + " \\\n    ".join(words) + "\n"
    )
