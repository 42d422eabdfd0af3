"""`sweep`: what runs of any machine have left behind in any region, found by their ids."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.paths import build_dir
from kiln.base.tags import RUN_ID
from kiln.base.vocabulary import read_stamp, utc_now
from kiln.cloud import aws
from kiln.cloud.cleanup import Resource, delete_resource, is_not_there, wait_until_ended
from kiln.cloud.images import list_images
from kiln.cloud.target import Target
from kiln.publish.regions import in_regions


@dataclass(frozen=True)
class Leftover:
    """A resource of a run that has ended. `error` is why it could not be removed."""

    region: str
    kind: str
    id: str
    run_id: str
    error: str = ""


def regions_of_account(target: Target) -> list[str]:
    """Return the regions that are enabled in the account."""
    with aws.explained("the regions of the account could not be listed"):
        answer = aws.ec2(target).describe_regions()
    return sorted(region["RegionName"] for region in answer["Regions"])


def leftovers(
    target: Target, regions: Sequence[str], older_than: timedelta, run_id: str | None = None
) -> list[Leftover]:
    """Return what runs that began before then have left: instances, key pairs, security groups,
    free volumes, snapshots without an image, copies that failed, launch templates. With `run_id`,
    what that run has left, however young.

    A complete AMI is not left over: `retire` decides about it.
    """
    before = utc_now() - older_than

    def find(there: Target) -> list[Leftover]:
        with aws.explained(f"what runs have left could not be listed in {there.region}"):
            return [
                Leftover(there.region, kind, resource, run)
                for kind, resource, run in _resources(there)
                if (run == run_id if run_id else _began_before(run, before))
            ]

    return [left for each in in_regions(target, regions, find).values() for left in each]


def sweep(target: Target, left: Sequence[Leftover]) -> list[Leftover]:
    """Remove them, instances first; return each with its error if EC2 refused. One's failure stops
    no other."""
    done = []
    for leftover in sorted(left, key=lambda leftover: _ORDER.index(leftover.kind)):
        what = f"{leftover.kind} {leftover.id} in {leftover.region} was not removed"
        error = ""
        try:
            with aws.explained(what):
                _remove(target.in_region(leftover.region), leftover)
            if leftover.kind == "instance":  # --on-error keep has left its key here
                for folder in build_dir().glob(f"*/{leftover.run_id}/ssh"):
                    shutil.rmtree(folder, ignore_errors=True)
        except KilnError as refused:
            error = refused.message
        done.append(replace(leftover, error=error))
    return done


_ORDER = ("instance", "AMI", "snapshot", "volume", "key pair", "security group", "launch template")


def _began_before(run_id: str, before: datetime) -> bool:
    """False for a value that is not a run id: nobody knows whose that is."""
    try:
        return vocabulary.RUN_ID.fits(run_id) and read_stamp(run_id[:16]) < before
    except ValueError:
        return False


def _resources(target: Target) -> Iterator[tuple[str, str, str]]:
    """Yield kind, id and run id of what runs have made in the target's region and nothing uses."""
    ec2 = aws.ec2(target)
    ours = [{"Name": "tag-key", "Values": [RUN_ID]}]

    def listed(operation: str, key: str, **query: Any) -> Iterator[Any]:
        return aws.paginated(ec2, operation, key, **{"Filters": ours, **query})

    for instance in listed("describe_instances", "Reservations[].Instances"):
        if instance["State"]["Name"] not in ("terminated", "shutting-down"):
            yield "instance", instance["InstanceId"], _run(instance)
    snapshots = list(listed("describe_snapshots", "Snapshots", OwnerIds=["self"]))
    # After the snapshots, so that the AMI of each is there already; also AMIs that are not ours,
    # which somebody has registered with a snapshot of ours.
    images = list(list_images(target, Owners=["self"], IncludeDisabled=True))
    for image in images:
        if RUN_ID in image.tags and image.state in ("failed", "error", "invalid"):
            yield "AMI", image.ami_id, image.tags[RUN_ID]
    used = {snapshot for image in images for snapshot in image.snapshots}
    # EC2 lists the snapshots of an image only when it is complete.
    pending = {image.tags.get(RUN_ID) for image in images if image.state == "pending"}
    for snapshot in snapshots:
        if snapshot["SnapshotId"] not in used and _run(snapshot) not in pending:
            yield "snapshot", snapshot["SnapshotId"], _run(snapshot)
    free = [*ours, {"Name": "status", "Values": ["available"]}]
    for volume in listed("describe_volumes", "Volumes", Filters=free):
        yield "volume", volume["VolumeId"], _run(volume)
    for key in ec2.describe_key_pairs(Filters=ours)["KeyPairs"]:  # type: ignore[arg-type]
        yield "key pair", key["KeyName"], _run(key)
    for group in listed("describe_security_groups", "SecurityGroups"):
        yield "security group", group["GroupId"], _run(group)
    for template in listed("describe_launch_templates", "LaunchTemplates"):
        yield "launch template", template["LaunchTemplateId"], _run(template)


def _run(resource: Any) -> str:
    return next((tag["Value"] for tag in resource["Tags"] if tag["Key"] == RUN_ID), "")


def _remove(target: Target, leftover: Leftover) -> None:
    """Remove it, if it is still there."""
    ec2 = aws.ec2(target)
    with aws.tolerated(is_not_there):
        if leftover.kind == "instance":
            ec2.terminate_instances(InstanceIds=[leftover.id])
            wait_until_ended(ec2, target, [leftover.id])
        else:
            delete_resource(ec2, Resource(leftover.kind, leftover.id))
