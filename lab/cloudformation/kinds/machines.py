"""AWS::EC2: a network and instances."""

from __future__ import annotations

import time
from typing import Any

from lab.cloudformation.errors import ResourceError
from lab.cloudformation.kinds.kind import Kind, Made, Place, Properties, without, words

_PATIENCE = 300


def _tags(place: Place, kind: str, properties: Properties) -> list[dict[str, Any]]:
    tags = place.all_tags(properties.get("Tags"))
    return [{"ResourceType": kind, "Tags": tags}] if tags else []


def _vpc(place: Place, name: str, properties: Properties) -> Made:
    ec2 = place.client("ec2")
    made = ec2.create_vpc(
        CidrBlock=properties["CidrBlock"], TagSpecifications=_tags(place, "vpc", properties)
    )["Vpc"]
    for key in ("EnableDnsSupport", "EnableDnsHostnames"):
        if key in properties:
            ec2.modify_vpc_attribute(
                VpcId=made["VpcId"], **{key: {"Value": _truth(properties[key])}}
            )
    return Made(made["VpcId"], {"VpcId": made["VpcId"], "CidrBlock": properties["CidrBlock"]})


def _gateway(place: Place, name: str, properties: Properties) -> Made:
    made = place.client("ec2").create_internet_gateway(
        TagSpecifications=_tags(place, "internet-gateway", properties)
    )["InternetGateway"]
    return Made(made["InternetGatewayId"])


def _attachment(place: Place, name: str, properties: Properties) -> Made:
    gateway, vpc = properties["InternetGatewayId"], properties["VpcId"]
    place.client("ec2").attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    return Made(f"IGW|{vpc}", {"gateway": gateway, "vpc": vpc})


def _detached(place: Place, made: Made) -> None:
    place.client("ec2").detach_internet_gateway(
        InternetGatewayId=made.attributes["gateway"], VpcId=made.attributes["vpc"]
    )


def _subnet(place: Place, name: str, properties: Properties) -> Made:
    ec2 = place.client("ec2")
    made = ec2.create_subnet(
        VpcId=properties["VpcId"],
        CidrBlock=properties["CidrBlock"],
        TagSpecifications=_tags(place, "subnet", properties),
    )["Subnet"]
    if _truth(properties.get("MapPublicIpOnLaunch", False)):
        ec2.modify_subnet_attribute(SubnetId=made["SubnetId"], MapPublicIpOnLaunch={"Value": True})
    return Made(made["SubnetId"], {"AvailabilityZone": made["AvailabilityZone"]})


def _table(place: Place, name: str, properties: Properties) -> Made:
    made = place.client("ec2").create_route_table(
        VpcId=properties["VpcId"], TagSpecifications=_tags(place, "route-table", properties)
    )["RouteTable"]
    return Made(made["RouteTableId"], {"RouteTableId": made["RouteTableId"]})


def _route(place: Place, name: str, properties: Properties) -> Made:
    place.client("ec2").create_route(**properties)
    target = {key: properties[key] for key in ("RouteTableId", "DestinationCidrBlock")}
    return Made("|".join(target.values()), target)


def _without_route(place: Place, made: Made) -> None:
    place.client("ec2").delete_route(**made.attributes)


def _association(place: Place, name: str, properties: Properties) -> Made:
    return Made(place.client("ec2").associate_route_table(**properties)["AssociationId"])


def _group(place: Place, name: str, properties: Properties) -> Made:
    ec2 = place.client("ec2")
    made = ec2.create_security_group(
        GroupName=properties.get("GroupName") or place.new_name(name),
        Description=properties["GroupDescription"],
        VpcId=properties["VpcId"],
        TagSpecifications=_tags(place, "security-group", properties),
    )["GroupId"]
    wanted = [_permission(rule) for rule in properties.get("SecurityGroupEgress", [])]
    if wanted and wanted != [_ALL]:
        ec2.revoke_security_group_egress(GroupId=made, IpPermissions=[_ALL])
        ec2.authorize_security_group_egress(GroupId=made, IpPermissions=wanted)
    ingress = [_permission(rule) for rule in properties.get("SecurityGroupIngress", [])]
    if ingress:
        ec2.authorize_security_group_ingress(GroupId=made, IpPermissions=ingress)
    return Made(made, {"GroupId": made, "VpcId": properties["VpcId"]})


_ALL = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


def _permission(rule: Properties) -> dict[str, Any]:
    ports = {key: int(rule[key]) for key in ("FromPort", "ToPort") if key in rule}
    extra = set(rule) - {"IpProtocol", "CidrIp", "FromPort", "ToPort", "Description"}
    if extra:
        raise ResourceError(f"AMI Kiln lab: {', '.join(extra)} of a rule is not implemented")
    return {
        "IpProtocol": str(rule["IpProtocol"]),
        **ports,
        "IpRanges": [{"CidrIp": rule["CidrIp"]}],
    }


def _template(place: Place, name: str, properties: Properties) -> Made:
    made = place.client("ec2").create_launch_template(
        LaunchTemplateName=properties.get("LaunchTemplateName") or place.new_name(name),
        LaunchTemplateData=properties["LaunchTemplateData"],
        TagSpecifications=_tags(place, "launch-template", properties),
    )["LaunchTemplate"]
    return Made(made["LaunchTemplateId"], _versions(made))


def _new_version(place: Place, made: Made, properties: Properties) -> Made:
    version = place.client("ec2").create_launch_template_version(
        LaunchTemplateId=made.id, LaunchTemplateData=properties["LaunchTemplateData"]
    )["LaunchTemplateVersion"]
    latest = str(version["VersionNumber"])
    return Made(made.id, {**made.attributes, "LatestVersionNumber": latest})


def _versions(made: Properties) -> dict[str, str]:
    return {
        "LaunchTemplateId": made["LaunchTemplateId"],
        "LatestVersionNumber": str(made["LatestVersionNumber"]),
        "DefaultVersionNumber": str(made["DefaultVersionNumber"]),
    }


def _instance(place: Place, name: str, properties: Properties) -> Made:
    ec2 = place.client("ec2")
    (made,) = ec2.run_instances(
        MinCount=1,
        MaxCount=1,
        TagSpecifications=_tags(place, "instance", properties),
        **without(properties, "Tags"),
    )["Instances"]
    instance = _until(ec2, made["InstanceId"], "running", "terminated")
    if instance["State"]["Name"] != "running":
        raise ResourceError(f"Resource of type 'AWS::EC2::Instance' did not stabilize: {name}")
    return Made(
        made["InstanceId"],
        {"InstanceId": made["InstanceId"], "PrivateIp": instance.get("PrivateIpAddress", "")},
    )


def _terminated(place: Place, made: Made) -> None:
    ec2 = place.client("ec2")
    ec2.terminate_instances(InstanceIds=[made.id])
    _until(ec2, made.id, "terminated")


def _until(ec2: Any, instance: str, *states: str) -> Any:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        (reservation,) = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
        (described,) = reservation["Instances"]
        if described["State"]["Name"] in states:
            return described
        time.sleep(0.2)
    raise ResourceError(f"{instance} is not {' or '.join(states)} after {_PATIENCE} s")


def _truth(value: Any) -> bool:
    return str(value).lower() == "true"


def _by(call: str, key: str) -> Any:
    """What deletes a resource by one call with its id."""
    return lambda place, made: getattr(place.client("ec2"), call)(**{key: made.id})


KINDS = {
    "AWS::EC2::VPC": Kind(
        _vpc,
        _by("delete_vpc", "VpcId"),
        words("CidrBlock EnableDnsSupport EnableDnsHostnames Tags"),
    ),
    "AWS::EC2::InternetGateway": Kind(
        _gateway, _by("delete_internet_gateway", "InternetGatewayId"), words("Tags")
    ),
    "AWS::EC2::VPCGatewayAttachment": Kind(
        _attachment, _detached, words("VpcId InternetGatewayId")
    ),
    "AWS::EC2::Subnet": Kind(
        _subnet,
        _by("delete_subnet", "SubnetId"),
        words("VpcId CidrBlock MapPublicIpOnLaunch Tags"),
    ),
    "AWS::EC2::RouteTable": Kind(
        _table, _by("delete_route_table", "RouteTableId"), words("VpcId Tags")
    ),
    "AWS::EC2::Route": Kind(
        _route, _without_route, words("RouteTableId DestinationCidrBlock GatewayId")
    ),
    "AWS::EC2::SubnetRouteTableAssociation": Kind(
        _association,
        _by("disassociate_route_table", "AssociationId"),
        words("SubnetId RouteTableId"),
    ),
    "AWS::EC2::SecurityGroup": Kind(
        _group,
        _by("delete_security_group", "GroupId"),
        words("GroupName GroupDescription VpcId SecurityGroupEgress SecurityGroupIngress Tags"),
    ),
    "AWS::EC2::LaunchTemplate": Kind(
        _template,
        _by("delete_launch_template", "LaunchTemplateId"),
        words("LaunchTemplateName LaunchTemplateData"),
        _new_version,
        words("LaunchTemplateName"),
    ),
    "AWS::EC2::Instance": Kind(
        _instance, _terminated, words("SubnetId LaunchTemplate ImageId InstanceType Tags")
    ),
}
