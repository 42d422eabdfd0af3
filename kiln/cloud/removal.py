"""Removes one resource in EC2, for the clean-up of a run and for `sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.cloud import aws

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class Resource:
    """A resource of a run in EC2. `tagged`: it carries the run's id."""

    kind: str
    id: str
    tagged: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


def delete_resource(client: EC2Client, resource: Resource) -> None:
    """Remove one resource, an instance excepted. EC2's errors are raised as they are."""
    if resource.kind == "AMI":
        client.deregister_image(ImageId=resource.id)
    elif resource.kind == "snapshot":
        client.delete_snapshot(SnapshotId=resource.id)
    elif resource.kind == "key pair":
        client.delete_key_pair(KeyName=resource.id)
    elif resource.kind == "security group":
        client.delete_security_group(GroupId=resource.id)
    else:
        client.delete_volume(VolumeId=resource.id)


def is_not_there(error: ClientError) -> bool:
    """Whether EC2 answered that the resource does not exist (any more): InvalidGroup.NotFound,
    InvalidVolume.NotFound, …"""
    code = error.response["Error"].get("Code", "")
    return code.endswith(".NotFound") or aws.is_gone(error)
