"""Which resources in EC2 are a run's: those with its tag, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kiln.base.tags import RUN_ID
from kiln.cloud import aws
from kiln.cloud.removal import Resource
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef


def tags(run_id: str, /, **more: str) -> list[Any]:
    """EC2 tags, the run's id first."""
    return [{"Key": RUN_ID, "Value": run_id}, *({"Key": k, "Value": v} for k, v in more.items())]


def live_instances(client: EC2Client, run_id: str) -> Iterable[Any]:
    states = ["pending", "running", "stopping", "stopped", "shutting-down"]
    pages = client.get_paginator("describe_instances").paginate(
        Filters=[*_mine(run_id), {"Name": "instance-state-name", "Values": states}]
    )
    for page in pages:
        yield from _instances_in(page, run_id)


def resource_finders(amis: bool) -> dict[str, Callable[[EC2Client, str], list[Resource]]]:
    """Kind → the function that finds a run's resources of it, in the order of removal.

    Instances are not among them.
    """
    of_images = {"AMI": _images, "snapshot": _snapshots} if amis else {}
    others = {"key pair": _key_pairs, "security group": _security_groups, "volume": _volumes}
    return {**of_images, **others, "launch template": _launch_templates}


def ended_by_ec2(target: Target, run_id: str) -> list[str]:
    """Why EC2 ended instances of a run on its own initiative, one text for each instance.

    A KMS key without permission or a lack of capacity shows only here: RunInstances succeeds.
    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html

    Raises KilnError (exit status 1) if AWS does not answer.
    """
    reasons = []
    with aws.explained("the reason why its instances ended could not be read"):
        pages = aws.ec2(target).get_paginator("describe_instances")
        for page in pages.paginate(Filters=_mine(run_id)):
            for instance in _instances_in(page, run_id):
                reason = instance.get("StateReason", {})
                # Client.UserInitiatedShutdown is a client's TerminateInstances: ours or Packer's.
                if reason.get("Code", "") not in ("", "Client.UserInitiatedShutdown"):
                    state = instance["State"]["Name"]
                    reasons.append(f"{instance['InstanceId']} went to {state}: {reason['Message']}")
    return reasons


def _mine(run_id: str) -> list[FilterTypeDef]:
    return [{"Name": f"tag:{RUN_ID}", "Values": [run_id]}]


def _instances_in(page: Any, run_id: str) -> list[Any]:
    """The run's instances in a page of DescribeInstances."""
    instances = [i for reservation in page["Reservations"] for i in reservation["Instances"]]
    return _of_run(instances, run_id)


def _of_run(described: Iterable[Any], run_id: str) -> list[Any]:
    """Those whose tag is exactly the run's id.

    EC2's filters take wildcards: an answer may hold more than the value means.
    """
    return [resource for resource in described if _is_tagged(resource, run_id)]


def _images(client: EC2Client, run_id: str) -> list[Resource]:
    return [
        Resource("AMI", image["ImageId"], _is_tagged(image, run_id))
        for image in _image_descriptions(client, run_id)
    ]


def _image_descriptions(client: EC2Client, run_id: str) -> list[Any]:
    # Packer tags an AMI only after creating it; its name holds the run's id from the start.
    by_name: list[Any] = [{"Name": "name", "Values": [f"*-{run_id}"]}]
    images = {
        image["ImageId"]: image
        for filters in (_mine(run_id), by_name)
        for image in client.describe_images(Owners=["self"], Filters=filters)["Images"]
        if _is_tagged(image, run_id) or str(image.get("Name", "")).endswith(f"-{run_id}")
    }
    return list(images.values())


def _snapshots(client: EC2Client, run_id: str) -> list[Resource]:
    """The snapshots of the run's AMIs, and those that an interrupted CreateImage left.

    Packer tags them after the AMI; until then only their description names the instance.
    """
    of_amis = {
        device["Ebs"]["SnapshotId"]
        for image in _image_descriptions(client, run_id)
        for device in image.get("BlockDeviceMappings", [])
        if device.get("Ebs", {}).get("SnapshotId")
    }
    instances = [
        instance["InstanceId"]
        for page in client.get_paginator("describe_instances").paginate(Filters=_mine(run_id))
        for instance in _instances_in(page, run_id)
    ]
    begins = tuple(f"Created by CreateImage({instance_id}) for" for instance_id in instances)
    filters: list[Any] = [_mine(run_id)]
    if of_amis:
        filters.append([{"Name": "snapshot-id", "Values": sorted(of_amis)}])
    if instances:
        # Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
        filters.append([{"Name": "description", "Values": [f"{text} *" for text in begins]}])
    snapshots = {
        snapshot["SnapshotId"]: Resource(
            "snapshot", snapshot["SnapshotId"], _is_tagged(snapshot, run_id)
        )
        for query in filters
        for snapshot in client.describe_snapshots(OwnerIds=["self"], Filters=query)["Snapshots"]
        if _is_tagged(snapshot, run_id)
        or snapshot["SnapshotId"] in of_amis
        or snapshot.get("Description", "").startswith(begins or ("\0",))
    }
    return list(snapshots.values())


def _key_pairs(client: EC2Client, run_id: str) -> list[Resource]:
    key_pairs = client.describe_key_pairs(Filters=_mine(run_id))["KeyPairs"]
    return [Resource("key pair", key["KeyName"]) for key in _of_run(key_pairs, run_id)]


def _security_groups(client: EC2Client, run_id: str) -> list[Resource]:
    groups = client.describe_security_groups(Filters=_mine(run_id))["SecurityGroups"]
    return [Resource("security group", group["GroupId"]) for group in _of_run(groups, run_id)]


def _volumes(client: EC2Client, run_id: str) -> list[Resource]:
    free: list[FilterTypeDef] = [*_mine(run_id), {"Name": "status", "Values": ["available"]}]
    volumes = client.describe_volumes(Filters=free)["Volumes"]
    return [Resource("volume", volume["VolumeId"]) for volume in _of_run(volumes, run_id)]


def _launch_templates(client: EC2Client, run_id: str) -> list[Resource]:
    """Packer makes one for a Spot instance, and may not come to delete it."""
    templates = client.describe_launch_templates(Filters=_mine(run_id))["LaunchTemplates"]
    return [
        Resource("launch template", template["LaunchTemplateId"])
        for template in _of_run(templates, run_id)
    ]


def _is_tagged(resource: Any, run_id: str) -> bool:
    return {"Key": RUN_ID, "Value": run_id} in resource.get("Tags", [])
