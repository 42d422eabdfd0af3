"""`sweep`: what runs of any machine have left behind in any region, found by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.tags import RUN_ID
from kiln.base.times import read_stamp, utc_now
from kiln.cloud import aws
from kiln.cloud.cleanup import Resource, delete_resource, is_not_there
from kiln.cloud.target import Target
from kiln.publish.regions import in_regions

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef, TagTypeDef

    _Found = Iterator[tuple[str, list[TagTypeDef]]]


@dataclass(frozen=True)
class Leftover:
    """A resource of a run that has ended. `error` is why it could not be removed."""

    region: str
    kind: str
    id: str
    run_id: str
    error: str = ""


def regions_of_account(target: Target) -> list[str]:
    """The regions that are enabled in the account. Raises KilnError (exit status 1)."""
    with aws.explained("the regions of the account could not be listed"):
        answer = aws.ec2(target).describe_regions()
    return sorted(region["RegionName"] for region in answer["Regions"])


def leftovers(
    target: Target, regions: Sequence[str], older_than: timedelta, run_id: str | None = None
) -> list[Leftover]:
    """What runs that began before then have left: instances, key pairs, security groups, free
    volumes, snapshots without an image, copies that failed, launch templates. With `run_id`,
    what that run has left, however young.

    A complete AMI is not left over: `retire` decides about it. Raises KilnError (exit status 1)
    if a region does not answer.
    """
    before = utc_now() - older_than

    def is_due(run: str) -> bool:
        return run == run_id if run_id else _began_before(run, before)

    by_region = in_regions(
        regions, lambda region: list(_leftovers(target.in_region(region), is_due))
    )
    return [leftover for region in regions for leftover in by_region[region]]


def sweep(target: Target, left: Sequence[Leftover]) -> list[Leftover]:
    """Remove them, instances first; each with its error if EC2 refused. One's failure stops no
    other."""
    done = []
    for leftover in sorted(left, key=lambda leftover: _ORDER.index(leftover.kind)):
        error = ""
        try:
            with aws.explained(
                f"{leftover.kind} {leftover.id} in {leftover.region} was not removed"
            ):
                _remove(target.in_region(leftover.region), leftover)
        except KilnError as refused:
            error = refused.message
        done.append(replace(leftover, error=error))
    return done


_ORDER = ("instance", "AMI", "snapshot", "volume", "key pair", "security group", "launch template")


def _leftovers(target: Target, is_due: Callable[[str], bool]) -> Iterator[Leftover]:
    with aws.explained(f"what runs have left could not be listed in {target.region}"):
        for kind, find in _FINDERS.items():
            for resource_id, tags in find(aws.ec2(target)):
                run_id = {tag["Key"]: tag["Value"] for tag in tags}.get(RUN_ID, "")
                if is_due(run_id):
                    yield Leftover(target.region, kind, resource_id, run_id)


def _began_before(run_id: str, before: datetime) -> bool:
    """False for a value that is not a run id: nobody knows whose that is."""
    if not vocabulary.RUN_ID.fits(run_id):
        return False
    try:
        began = read_stamp(run_id[:16])
    except ValueError:
        return False
    return began < before


_OURS: Sequence[FilterTypeDef] = [{"Name": "tag-key", "Values": [RUN_ID]}]


def _instances(ec2: EC2Client) -> _Found:
    for page in ec2.get_paginator("describe_instances").paginate(Filters=_OURS):
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                if instance["State"]["Name"] not in ("terminated", "shutting-down"):
                    yield instance["InstanceId"], instance["Tags"]


def _failed_images(ec2: EC2Client) -> _Found:
    for image in _images(ec2, Filters=_OURS):
        if image["State"] in ("failed", "error", "invalid"):
            yield image["ImageId"], image["Tags"]


def _images(ec2: EC2Client, **query: Any) -> list[ImageTypeDef]:
    pages = ec2.get_paginator("describe_images").paginate(
        Owners=["self"], IncludeDeprecated=True, IncludeDisabled=True, **query
    )
    return [image for page in pages for image in page["Images"]]


def _loose_snapshots(ec2: EC2Client) -> _Found:
    pages = ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=_OURS)
    snapshots = [snapshot for page in pages for snapshot in page["Snapshots"]]
    # After the snapshots, so that the AMI of each is there already; also AMIs that are not ours,
    # which somebody has registered with a snapshot of ours.
    images = _images(ec2)
    used = {
        mapping["Ebs"]["SnapshotId"]
        for image in images
        for mapping in image.get("BlockDeviceMappings", [])
        if mapping.get("Ebs", {}).get("SnapshotId")
    }
    # EC2 lists the snapshots of an image only when it is complete.
    pending = {
        tag["Value"]
        for image in images
        if image["State"] == "pending"
        for tag in image.get("Tags", [])
        if tag["Key"] == RUN_ID
    }
    for snapshot in snapshots:
        runs = {tag["Value"] for tag in snapshot["Tags"] if tag["Key"] == RUN_ID}
        if snapshot["SnapshotId"] not in used and not runs & pending:
            yield snapshot["SnapshotId"], snapshot["Tags"]


def _free_volumes(ec2: EC2Client) -> _Found:
    free: list[FilterTypeDef] = [*_OURS, {"Name": "status", "Values": ["available"]}]
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=free):
        for volume in page["Volumes"]:
            yield volume["VolumeId"], volume["Tags"]


def _key_pairs(ec2: EC2Client) -> _Found:
    for key in ec2.describe_key_pairs(Filters=_OURS)["KeyPairs"]:
        yield key["KeyName"], key["Tags"]


def _security_groups(ec2: EC2Client) -> _Found:
    for page in ec2.get_paginator("describe_security_groups").paginate(Filters=_OURS):
        for group in page["SecurityGroups"]:
            yield group["GroupId"], group["Tags"]


def _launch_templates(ec2: EC2Client) -> _Found:
    for page in ec2.get_paginator("describe_launch_templates").paginate(Filters=_OURS):
        for template in page["LaunchTemplates"]:
            yield template["LaunchTemplateId"], template["Tags"]


_FINDERS: dict[str, Callable[[EC2Client], _Found]] = {
    "instance": _instances,
    "AMI": _failed_images,
    "snapshot": _loose_snapshots,
    "volume": _free_volumes,
    "key pair": _key_pairs,
    "security group": _security_groups,
    "launch template": _launch_templates,
}


def _remove(target: Target, leftover: Leftover) -> None:
    """Remove it, if it is still there."""
    from botocore.exceptions import ClientError

    ec2 = aws.ec2(target)
    try:
        if leftover.kind == "instance":
            ec2.terminate_instances(InstanceIds=[leftover.id])
            ec2.get_waiter("instance_terminated").wait(InstanceIds=[leftover.id])
        else:
            delete_resource(ec2, Resource(leftover.kind, leftover.id))
    except ClientError as error:
        if not is_not_there(error):
            raise
