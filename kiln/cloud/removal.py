"""Removes one resource in EC2, for the clean-up of a run and for `sweep`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.cloud import aws

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_ec2 import EC2Client


# EC2 says for a moment that a snapshot is in use after its AMI has been deregistered, a security
# group or a volume after its instance has ended:
# https://github.com/boto/boto/issues/3019, https://github.com/hashicorp/packer/issues/278
_IN_USE = ("InvalidSnapshot.InUse", "DependencyViolation", "VolumeInUse")
# Seconds until it is believed, and between two tries.
_BELIEVED, _PAUSE = 30.0, 2.0


@dataclass(frozen=True)
class Resource:
    """A resource of a run in EC2. `tagged`: it carries the run's id."""

    kind: str
    id: str
    tagged: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


def delete_resource(
    client: EC2Client, resource: Resource, *, hurried: Callable[[], bool] = lambda: False
) -> None:
    """Remove one resource, an instance excepted. EC2's errors are raised as they are.

    One that EC2 says is in use is tried again for half a minute, unless `hurried` becomes true.
    """
    from botocore.exceptions import ClientError

    deadline = time.monotonic() + _BELIEVED
    while True:
        try:
            return _delete(client, resource)
        except ClientError as error:
            in_use = error.response["Error"].get("Code") in _IN_USE
            if not in_use or hurried() or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


def _delete(client: EC2Client, resource: Resource) -> None:
    if resource.kind == "AMI":
        client.deregister_image(ImageId=resource.id)
    elif resource.kind == "snapshot":
        client.delete_snapshot(SnapshotId=resource.id)
    elif resource.kind == "key pair":
        client.delete_key_pair(KeyName=resource.id)
    elif resource.kind == "security group":
        client.delete_security_group(GroupId=resource.id)
    elif resource.kind == "launch template":
        client.delete_launch_template(LaunchTemplateId=resource.id)
    else:
        client.delete_volume(VolumeId=resource.id)


def is_not_there(error: ClientError) -> bool:
    """Whether EC2 answered that the resource does not exist (any more): InvalidGroup.NotFound,
    InvalidVolume.NotFound, InvalidLaunchTemplateName.NotFoundException, …"""
    code = error.response["Error"].get("Code", "")
    return code.endswith((".NotFound", ".NotFoundException")) or aws.is_gone(error)
