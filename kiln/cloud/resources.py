"""What a run makes in EC2 besides the AMI, and taking it away again, whatever happened."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import RUN_ID
from kiln.cloud import aws
from kiln.cloud.runs import Run
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# Seconds; EC2 says nothing of how long a termination may take, minutes are usual.
_TERMINATE_TIMEOUT = 600


@dataclass(frozen=True)
class Access:
    """The way to a run's instances: a key pair and a security group of its own."""

    key_name: str
    key_file: Path
    security_group: str
    source_cidr: str


def make_access(run: Run, target: Target, subnet_id: str | None = None) -> Access:
    """A key pair, and a security group that lets this machine's address in on port 22.

    Raises KilnError (exit code 1) when AWS refuses, or this machine's address is unknown.
    """
    client = aws.ec2(target)
    cidr = target.own_cidr()
    with aws.explained("the key pair could not be made"):
        key = client.create_key_pair(
            KeyName=f"kiln-{run.id}",
            KeyType="ed25519",
            TagSpecifications=[_tagged("key-pair", run)],
        )
    folder = run.folder / "ssh"
    folder.mkdir(mode=0o700)
    key_file = folder / "key.pem"
    key_file.touch(mode=0o600)
    key_file.write_text(key["KeyMaterial"])
    with aws.explained("the security group could not be made"):
        group = client.create_security_group(
            GroupName=f"kiln-{run.id}",
            Description=f"AMI Kiln run {run.id}: SSH from the machine that builds",
            VpcId=_vpc(client, subnet_id),
            TagSpecifications=[_tagged("security-group", run)],
        )["GroupId"]
        client.authorize_security_group_ingress(
            GroupId=group,
            IpPermissions=[
                {
                    "IpProtocol": "tcp",
                    "FromPort": 22,
                    "ToPort": 22,
                    "IpRanges": [{"CidrIp": cidr, "Description": "the machine that builds"}],
                }
            ],
        )
    return Access(f"kiln-{run.id}", key_file, group, cidr)


@dataclass(frozen=True)
class Thing:
    """Something of a run that is there in EC2. `tagged`: it carries the run's id."""

    kind: str
    id: str
    tagged: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True)
class Removal:
    """What a clean-up removed, in words, and what AWS said where it did not get to its end."""

    removed: list[str]
    failures: list[str]


def remove(run_id: str, target: Target, *, amis: bool) -> Removal:
    """Remove everything of a run; with `amis` also its AMIs and their snapshots.

    What cannot be removed keeps none of the rest. Raises nothing that AWS answers.
    """
    client = aws.ec2(target)
    removed: list[str] = []
    failures: list[str] = []
    with _noted(failures):
        removed += _terminate(client, run_id, target)
    things: list[Thing] = []
    for look in _looks(amis):
        with _noted(failures):
            things += look(client, run_id)
    untagged = [thing.id for thing in things if not thing.tagged]
    if untagged:
        # What carries no id of a run may not be removed: see docs/iam-policy.json.
        with _noted(failures):
            client.create_tags(Resources=untagged, Tags=tags(run_id))
    for thing in things:
        with _noted(failures):
            _delete(client, thing)
            removed.append(str(thing))
    return Removal(removed, failures)


def left(run_id: str, target: Target, *, amis: bool) -> list[str]:
    """What of a run is still there, in words: for the message after a clean-up that failed."""
    client = aws.ec2(target)
    with aws.explained("what is left could not be listed"):
        found = [f"instance {one['InstanceId']}" for one in _alive(client, run_id)]
        for look in _looks(amis):
            found += map(str, look(client, run_id))
    return found


def forget_key(run: Run) -> None:
    """Delete the private key of a run from this machine."""
    shutil.rmtree(run.folder / "ssh", ignore_errors=True)


def tags(run_id: str, **more: str) -> list[Any]:
    """EC2 tags with the run's id first."""
    return [{"Key": RUN_ID, "Value": run_id}, *({"Key": k, "Value": v} for k, v in more.items())]


def ended_by_ec2(target: Target, run_id: str) -> list[str]:
    """EC2's reasons for ending instances of a run that nobody told it to end, one text each.

    A volume's KMS key that may not be used and a lack of capacity show only here: RunInstances
    had succeeded. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html

    Raises KilnError when AWS does not answer.
    """
    said = []
    with aws.explained("its instances could not be asked why they ended"):
        pages = aws.ec2(target).get_paginator("describe_instances")
        for page in pages.paginate(Filters=_mine(run_id)):
            for instance in (one for some in page["Reservations"] for one in some["Instances"]):
                reason = instance.get("StateReason", {})
                # Client.UserInitiatedShutdown is a client's TerminateInstances: ours or Packer's.
                if reason.get("Code", "") not in ("", "Client.UserInitiatedShutdown"):
                    state = instance["State"]["Name"]
                    said.append(f"{instance['InstanceId']} went to {state}: {reason['Message']}")
    return said


def _tagged(kind: Any, run: Run) -> Any:
    return {"ResourceType": kind, "Tags": tags(run.id, Name=f"kiln-{run.id}")}


def _mine(run_id: str) -> list[Any]:
    return [{"Name": f"tag:{RUN_ID}", "Values": [run_id]}]


def _alive(client: EC2Client, run_id: str) -> Iterable[Any]:
    states = ["pending", "running", "stopping", "stopped", "shutting-down"]
    pages = client.get_paginator("describe_instances").paginate(
        Filters=[*_mine(run_id), {"Name": "instance-state-name", "Values": states}]
    )
    for page in pages:
        for reservation in page["Reservations"]:
            yield from reservation["Instances"]


@contextmanager
def _noted(failures: list[str]) -> Iterator[None]:
    """Keep what AWS says against a removal, except that somebody else was faster."""
    from botocore.exceptions import ClientError

    try:
        with aws.explained("not removed"):
            try:
                yield
            except ClientError as error:
                # InvalidGroup.NotFound, InvalidVolume.NotFound, …; InvalidAMIID.Unavailable
                code = error.response["Error"].get("Code", "")
                if not code.endswith((".NotFound", "AMIID.Unavailable")):
                    raise
    except KilnError as error:
        failures.append(str(error))


def _terminate(client: EC2Client, run_id: str, target: Target) -> list[str]:
    ids = [instance["InstanceId"] for instance in _alive(client, run_id)]
    if ids:
        client.terminate_instances(InstanceIds=ids)
        deadline = time.monotonic() + _TERMINATE_TIMEOUT
        while any(one["InstanceId"] in ids for one in _alive(client, run_id)):
            if time.monotonic() > deadline:
                raise operation_failed(
                    f"{', '.join(ids)} is still there {_TERMINATE_TIMEOUT} s after"
                )
            time.sleep(target.poll_seconds)
    return [f"instance {one}" for one in ids]


def _looks(amis: bool) -> list[Callable[[EC2Client, str], list[Thing]]]:
    """How to find what a run leaves besides its instances, in the order of removal."""
    return [*([_images, _snapshots] if amis else []), _key_pairs, _security_groups, _volumes]


def _images(client: EC2Client, run_id: str) -> list[Thing]:
    return [
        Thing("AMI", image["ImageId"], _is_tagged(image, run_id))
        for image in _image_descriptions(client, run_id)
    ]


def _image_descriptions(client: EC2Client, run_id: str) -> list[Any]:
    # Packer tags an AMI after it has made it; it bears the run's id in its name from the start.
    by_name: list[Any] = [{"Name": "name", "Values": [f"*-{run_id}"]}]
    found = {
        image["ImageId"]: image
        for filters in (_mine(run_id), by_name)
        for image in client.describe_images(Owners=["self"], Filters=filters)["Images"]
    }
    return list(found.values())


def _snapshots(client: EC2Client, run_id: str) -> list[Thing]:
    """Those of the run's AMIs, and those that a CreateImage without an end has left.

    They are tagged after the AMI; before, their description alone names the instance.
    """
    named = {
        device["Ebs"]["SnapshotId"]
        for image in _image_descriptions(client, run_id)
        for device in image.get("BlockDeviceMappings", [])
        if device.get("Ebs", {}).get("SnapshotId")
    }
    instances = [
        instance["InstanceId"]
        for page in client.get_paginator("describe_instances").paginate(Filters=_mine(run_id))
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]
    filters: list[Any] = [_mine(run_id)]
    if named:
        filters.append([{"Name": "snapshot-id", "Values": sorted(named)}])
    if instances:
        # https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
        described = [f"Created by CreateImage({one}) for *" for one in instances]
        filters.append([{"Name": "description", "Values": described}])
    found = {
        snapshot["SnapshotId"]: Thing(
            "snapshot", snapshot["SnapshotId"], _is_tagged(snapshot, run_id)
        )
        for one in filters
        for snapshot in client.describe_snapshots(OwnerIds=["self"], Filters=one)["Snapshots"]
    }
    return list(found.values())


def _key_pairs(client: EC2Client, run_id: str) -> list[Thing]:
    found = client.describe_key_pairs(Filters=_mine(run_id))["KeyPairs"]
    return [Thing("key pair", key["KeyName"]) for key in found]


def _security_groups(client: EC2Client, run_id: str) -> list[Thing]:
    found = client.describe_security_groups(Filters=_mine(run_id))["SecurityGroups"]
    return [Thing("security group", group["GroupId"]) for group in found]


def _volumes(client: EC2Client, run_id: str) -> list[Thing]:
    free: list[Any] = [*_mine(run_id), {"Name": "status", "Values": ["available"]}]
    found = client.describe_volumes(Filters=free)["Volumes"]
    return [Thing("volume", volume["VolumeId"]) for volume in found]


def _delete(client: EC2Client, thing: Thing) -> None:
    if thing.kind == "AMI":
        client.deregister_image(ImageId=thing.id)
    elif thing.kind == "snapshot":
        client.delete_snapshot(SnapshotId=thing.id)
    elif thing.kind == "key pair":
        client.delete_key_pair(KeyName=thing.id)
    elif thing.kind == "security group":
        client.delete_security_group(GroupId=thing.id)
    else:
        client.delete_volume(VolumeId=thing.id)


def _is_tagged(found: Any, run_id: str) -> bool:
    return {"Key": RUN_ID, "Value": run_id} in found.get("Tags", [])


def _vpc(client: EC2Client, subnet_id: str | None) -> str:
    if subnet_id:
        return client.describe_subnets(SubnetIds=[subnet_id])["Subnets"][0]["VpcId"]
    found = client.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not found:
        raise operation_failed(
            "this region has no default VPC", hint="name a subnet with --subnet-id subnet-…"
        )
    return found[0]["VpcId"]
