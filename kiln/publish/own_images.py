"""Who uses the AMIs of a region."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish import channels


def users_of(target: Target, image_ids: Sequence[str]) -> dict[str, list[str]]:
    """What names each AMI in the target's region: instances that are not terminated, versions of
    launch templates (also by a parameter), launch configurations, Auto Scaling groups, EC2 and Spot
    Fleets, parameters of AMIs other than those of channels.

    Raises KilnError (exit status 1) if AWS refuses: an AMI without a known user may have one then.
    """
    wanted = set(image_ids)
    users: dict[str, list[str]] = defaultdict(list)
    if wanted:
        with aws.explained(f"who uses the AMIs could not be asked in {target.region}"):
            for image_id, user in [
                *_instances(target, sorted(wanted)),
                *_looked_up(target, (*_templates(target), *_fleets(target))),
                *_configurations(target),
                *_groups(target),
                *_parameters(target),
            ]:
                if image_id in wanted:
                    users[image_id].append(user)
    return users


# DescribeInstances takes at most 200 values of a filter:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html
_VALUES = 200


def _instances(target: Target, image_ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    pages = aws.ec2(target).get_paginator("describe_instances")
    for first in range(0, len(image_ids), _VALUES):
        batch = list(image_ids[first : first + _VALUES])
        for page in pages.paginate(Filters=[{"Name": "image-id", "Values": batch}]):
            for reservation in page["Reservations"]:
                for instance in reservation["Instances"]:
                    if instance["State"]["Name"] != "terminated":
                        yield instance["ImageId"], f"instance {instance['InstanceId']}"


def _templates(target: Target) -> Iterator[tuple[str, str]]:
    ec2 = aws.ec2(target)
    versions = ec2.get_paginator("describe_launch_template_versions")
    for page in ec2.get_paginator("describe_launch_templates").paginate():
        for template in page["LaunchTemplates"]:
            name = template["LaunchTemplateName"]
            for part in versions.paginate(LaunchTemplateId=template["LaunchTemplateId"]):
                for version in part["LaunchTemplateVersions"]:
                    number = version["VersionNumber"]
                    image = version["LaunchTemplateData"].get("ImageId", "")
                    yield image, f"launch template {name} version {number}"


# A fleet that is in none of these launches nothing more.
_AT_WORK = ("submitted", "active", "modifying")


def _fleets(target: Target) -> Iterator[tuple[str, str]]:
    """The AMIs that fleets name themselves, instead of their launch template. An EC2 Fleet of the
    type `instant` has launched what it ever will, and is not listed.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeFleets.html
    """
    ec2 = aws.ec2(target)
    for page in ec2.get_paginator("describe_fleets").paginate():
        for fleet in page["Fleets"]:
            for config in fleet.get("LaunchTemplateConfigs", []):
                for override in config.get("Overrides", []):
                    if fleet["FleetState"] in _AT_WORK:
                        yield override.get("ImageId", ""), f"EC2 Fleet {fleet['FleetId']}"
    for requests in ec2.get_paginator("describe_spot_fleet_requests").paginate():
        for request in requests["SpotFleetRequestConfigs"]:
            for launch in request["SpotFleetRequestConfig"].get("LaunchSpecifications", []):
                if request["SpotFleetRequestState"] in _AT_WORK:
                    name = request["SpotFleetRequestId"]
                    yield launch.get("ImageId", ""), f"Spot Fleet {name}"


# In the place of an AMI's id, with a parameter's name, which may have a version or a label:
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/using-systems-manager-parameters.html
_BY_PARAMETER = "resolve:ssm:"
# AWS's own parameters name no AMI of ours.
_PUBLIC = f"{_BY_PARAMETER}/aws/"


def _looked_up(target: Target, named: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The same, with the AMI's id where a parameter names it. One that is gone names nothing."""
    ids: dict[str, str] = {}
    for image, user in named:
        if image.startswith(_BY_PARAMETER) and not image.startswith(_PUBLIC):
            name = image.removeprefix(_BY_PARAMETER)
            if name not in ids:
                ids[name] = _value(target, name)
            yield ids[name], f"{user} by {name}"
        else:
            yield image, user


def _value(target: Target, name: str) -> str:
    """The value of a parameter; "" if there is none, or not that version of it."""
    from botocore.exceptions import ClientError

    try:
        return str(aws.ssm(target).get_parameter(Name=name)["Parameter"]["Value"])
    except ClientError as error:
        if error.response["Error"].get("Code") in ("ParameterNotFound", "ParameterVersionNotFound"):
            return ""
        raise


def _groups(target: Target) -> Iterator[tuple[str, str]]:
    """The AMIs that Auto Scaling groups name themselves, instead of their launch template."""
    pages = aws.autoscaling(target).get_paginator("describe_auto_scaling_groups")
    for page in pages.paginate():
        for group in page["AutoScalingGroups"]:
            template = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
            for override in template.get("Overrides", []):
                name = group["AutoScalingGroupName"]
                yield override.get("ImageId", ""), f"Auto Scaling group {name}"


def _configurations(target: Target) -> Iterator[tuple[str, str]]:
    pages = aws.autoscaling(target).get_paginator("describe_launch_configurations")
    for page in pages.paginate():
        for configuration in page["LaunchConfigurations"]:
            name = configuration["LaunchConfigurationName"]
            yield configuration["ImageId"], f"launch configuration {name}"


# DescribeParameters gives at most 50 at once, GetParameters takes ten names:
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_DescribeParameters.html
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetParameters.html
_PAGE = 50
_NAMES = 10


def _parameters(target: Target) -> Iterator[tuple[str, str]]:
    """The AMIs that parameters of the data type aws:ec2:image name: other accounts and programs
    may launch by them. Those of channels are left out, since what a channel holds is read anyway.

    Source: https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_ParameterStringFilter.html
    """
    ssm = aws.ssm(target)
    pages = ssm.get_paginator("describe_parameters").paginate(
        ParameterFilters=[{"Key": "DataType", "Values": ["aws:ec2:image"]}],
        PaginationConfig={"PageSize": _PAGE},
    )
    described = (parameter["Name"] for page in pages for parameter in page["Parameters"])
    names = [name for name in described if not channels.is_image_parameter(name)]
    for first in range(0, len(names), _NAMES):
        for parameter in ssm.get_parameters(Names=names[first : first + _NAMES])["Parameters"]:
            yield parameter["Value"], f"parameter {parameter['Name']}"
