"""The optional part: a network that lets nobody in, and two instances of one image."""

from __future__ import annotations

from typing import Any

from kiln.telemetry.stack.inputs import Resource, attribute, is_true, reference

INFRA = "WithInfra"
INSTANCES = ("FirstInstance", "SecondInstance")
PARAMETERS: dict[str, Any] = {
    "DeployInfra": {
        "Type": "String",
        "AllowedValues": ["true", "false"],
        "Default": "false",
        "Description": "true: also a VPC without ingress and two instances, for a trial",
    },
    "Image": {
        "Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>",
        "Default": "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
        "Description": "parameter that holds the AMI of the two instances: a channel's",
    },
    "InstanceType": {"Type": "String", "Default": "g4dn.xlarge"},
}
CONDITIONS = {INFRA: is_true("DeployInfra")}
_NAME = [{"Key": "Name", "Value": {"Ref": "AWS::StackName"}}]


def network_resources() -> dict[str, Resource]:
    """VPC, public subnet, a group without ingress, two instances; all only with DeployInfra."""
    resources: dict[str, Resource] = {
        "Vpc": _of(
            "AWS::EC2::VPC",
            CidrBlock="10.77.0.0/24",
            EnableDnsSupport=True,
            EnableDnsHostnames=True,
            Tags=_NAME,
        ),
        "Gateway": _of("AWS::EC2::InternetGateway", Tags=_NAME),
        "GatewayAttachment": _of(
            "AWS::EC2::VPCGatewayAttachment",
            VpcId=reference("Vpc"),
            InternetGatewayId=reference("Gateway"),
        ),
        "Subnet": _of(
            "AWS::EC2::Subnet",
            VpcId=reference("Vpc"),
            CidrBlock="10.77.0.0/26",
            MapPublicIpOnLaunch=True,
            Tags=_NAME,
        ),
        "Routes": _of("AWS::EC2::RouteTable", VpcId=reference("Vpc"), Tags=_NAME),
        "DefaultRoute": {
            **_of(
                "AWS::EC2::Route",
                RouteTableId=reference("Routes"),
                DestinationCidrBlock="0.0.0.0/0",
                GatewayId=reference("Gateway"),
            ),
            "DependsOn": "GatewayAttachment",
        },
        "SubnetRoutes": _of(
            "AWS::EC2::SubnetRouteTableAssociation",
            SubnetId=reference("Subnet"),
            RouteTableId=reference("Routes"),
        ),
        "NoIngress": _of(
            "AWS::EC2::SecurityGroup",
            GroupDescription="Nobody may connect; Systems Manager needs no ingress",
            VpcId=reference("Vpc"),
            SecurityGroupEgress=[{"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}],
            Tags=_NAME,
        ),
        "Template": _of(
            "AWS::EC2::LaunchTemplate",
            LaunchTemplateData={
                "ImageId": reference("Image"),
                "InstanceType": reference("InstanceType"),
                "IamInstanceProfile": {"Name": reference("InstanceProfile")},
                "SecurityGroupIds": [attribute("NoIngress", "GroupId")],
                "MetadataOptions": {"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
            },
        ),
    }
    for name in INSTANCES:
        resources[name] = {
            **_of(
                "AWS::EC2::Instance",
                SubnetId=reference("Subnet"),
                LaunchTemplate={
                    "LaunchTemplateId": reference("Template"),
                    "Version": attribute("Template", "LatestVersionNumber"),
                },
                Tags=_NAME,
            ),
            "DependsOn": ["DefaultRoute", "SubnetRoutes"],
        }
    return resources


def _of(kind: str, **properties: Any) -> Resource:
    return {"Type": kind, "Condition": INFRA, "Properties": properties}
