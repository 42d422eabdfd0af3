"""Plain EC2: a launch template, an Auto Scaling group, a command."""

from __future__ import annotations

from typing import Any

from kiln.consume.documents import as_json, ref, stack, text_parameter
from kiln.consume.launch_request import LaunchRequest
from kiln.consume.machine import launch_data

SUBNETS = {"Type": "List<AWS::EC2::Subnet::Id>", "Description": "where instances start"}
GROUPS = {
    "Type": "List<AWS::EC2::SecurityGroup::Id>",
    "Description": "with EFA they must allow all traffic within themselves",
}
SIZE = {"Type": "Number", "Default": 1, "MinValue": 0}
CONDITIONS = {
    name: {"Fn::Not": [{"Fn::Equals": [ref(parameter), ""]}]}
    for name, parameter in (
        ("HasProfile", "InstanceProfile"),
        ("HasReservation", "CapacityReservation"),
        ("HasPlacement", "PlacementGroup"),
    )
} | {"HasBlock": {"Fn::Equals": [ref("CapacityBlock"), "yes"]}}


def only_if(condition: str, value: Any, otherwise: Any = None) -> dict[str, Any]:
    """CloudFormation's Fn::If; without `otherwise` the property is left out."""
    return {"Fn::If": [condition, value, otherwise or ref("AWS::NoValue")]}


def template_resource(wanted: LaunchRequest, image: Any, **more: Any) -> dict[str, Any]:
    """AWS::EC2::LaunchTemplate with the parameters of `optional`."""
    reserved = {"CapacityReservationTarget": {"CapacityReservationId": ref("CapacityReservation")}}
    data = launch_data(
        wanted,
        image,
        groups=ref("SecurityGroups"),
        IamInstanceProfile=only_if("HasProfile", {"Name": ref("InstanceProfile")}),
        Placement=only_if("HasPlacement", {"GroupName": ref("PlacementGroup")}),
        CapacityReservationSpecification=only_if("HasReservation", reserved),
        InstanceMarketOptions=only_if("HasBlock", {"MarketType": "capacity-block"}),
        **more,
    )
    return {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": data}}


def optional(wanted: LaunchRequest) -> dict[str, Any]:
    """The parameters that a launch template's resource reads."""
    options = wanted.options
    block = "yes" if options.capacity_block else "no"
    return {
        "SecurityGroups": GROUPS,
        "InstanceProfile": text_parameter(
            "name of an instance profile, such as that of stack.deploy; empty for none",
            options.instance_profile,
        ),
        "CapacityReservation": text_parameter(
            "id of a capacity reservation or capacity block; empty for none",
            options.reservation,
        ),
        "CapacityBlock": {
            **text_parameter("whether the reservation is a capacity block", block),
            "AllowedValues": ["yes", "no"],
        },
        "PlacementGroup": text_parameter(
            "name of a placement group; empty for none", options.placement_group
        ),
    }


def launch_template(wanted: LaunchRequest) -> str:
    """A CloudFormation template with the launch template alone, which has a name."""
    named = template_resource(wanted, wanted.image)
    named["Properties"]["LaunchTemplateName"] = wanted.name
    return stack(
        wanted,
        "launch template; every launch resolves the channel anew",
        parameters=optional(wanted),
        conditions=CONDITIONS,
        resources={"LaunchTemplate": named},
        outputs={"LaunchTemplate": ref("LaunchTemplate")},
    )


def launch_template_json(wanted: LaunchRequest) -> str:
    """What `aws ec2 create-launch-template --cli-input-json file://…` takes."""
    made: dict[str, Any] = {
        "LaunchTemplateName": wanted.name,
        "VersionDescription": f"{wanted.line} {wanted.channel}",
        "LaunchTemplateData": launch_data(wanted, wanted.image, groups=["sg-0123456789abcdef0"]),
    }
    made["LaunchTemplateData"] |= wanted.options.launch_data()
    return as_json(made)


def scaling_group(wanted: LaunchRequest) -> str:
    """A group of instances that gets the channel's image when the stack is updated."""
    parameters, image = looked_up(wanted)
    return stack(
        wanted,
        "Auto Scaling group; an update of the stack takes the channel's image of that moment",
        parameters={
            **parameters,
            **optional(wanted),
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
        # CloudFormation compares a dynamic reference as text, so a stack whose template is the same
        # never takes a newer image by it: a parameter it looks up at each update.
        # https://github.com/aws-cloudformation/cloudformation-coverage-roadmap/issues/844
        notes=()
        if wanted.image_id
        else (
            "In a template of your own, which is changed besides:",
            f"  ImageId: '{{{{resolve:ssm:{wanted.parameter}}}}}'",
        ),
    )


def looked_up(wanted: LaunchRequest) -> tuple[dict[str, Any], Any]:
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


def command_line(wanted: LaunchRequest) -> str:
    """A command that launches one instance."""
    data = launch_data(wanted, wanted.image, groups=["$GROUP"]) | wanted.options.launch_data()
    if "NetworkInterfaces" in data:
        data["NetworkInterfaces"] = [
            card | {"SubnetId": "$SUBNET"} for card in data["NetworkInterfaces"]
        ]
    else:
        data["SubnetId"] = "$SUBNET"
    request = as_json(data | {"KeyName": "$KEY", "MinCount": 1, "MaxCount": 1})
    return (
        "#!/bin/bash\n"
        f"# One {wanted.instance_type.type} of {wanted.line}, channel {wanted.channel}.\n"
        "# Set SUBNET, GROUP and KEY first.\n"
        "set -euo pipefail\n"
        ': "${SUBNET:?} ${GROUP:?} ${KEY:?}"\n'
        f"aws ec2 run-instances --region {wanted.region} --cli-input-json "
        f'"$(cat <<END\n{request}END\n)"\n'
    )
