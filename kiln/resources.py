"""What a run makes in EC2 besides the AMI, and taking it away again, whatever happened."""

from __future__ import annotations

import ipaddress
import shutil
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import aws
from kiln.errors import world_failed
from kiln.runs import Run
from kiln.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

RUN_TAG = "kiln:run-id"
# Seconds; EC2 says nothing of how long a termination may take, minutes are usual.
_TERMINATE_TIMEOUT = 600
# AWS's own "what is my address": https://checkip.amazonaws.com
_CHECK_IP = "https://checkip.amazonaws.com"


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
    cidr = _own_address(target)
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


def remove(run_id: str, target: Target, *, amis: bool) -> list[str]:
    """Remove everything that carries a run's id; what was removed, in words.

    With `amis` also its AMIs and their snapshots. Raises KilnError (exit code 1) when AWS
    refuses: what could be removed is gone then.
    """
    client = aws.ec2(target)
    removed: list[str] = []
    with aws.explained(f"the clean-up of run {run_id} did not get to its end"):
        removed += _instances(client, run_id, target)
        if amis:
            removed += _images(client, run_id)
        for key in client.describe_key_pairs(Filters=_mine(run_id))["KeyPairs"]:
            client.delete_key_pair(KeyName=key["KeyName"])
            removed.append(f"key pair {key['KeyName']}")
        for group in client.describe_security_groups(Filters=_mine(run_id))["SecurityGroups"]:
            client.delete_security_group(GroupId=group["GroupId"])
            removed.append(f"security group {group['GroupId']}")
        for volume in client.describe_volumes(
            Filters=[*_mine(run_id), {"Name": "status", "Values": ["available"]}]
        )["Volumes"]:
            client.delete_volume(VolumeId=volume["VolumeId"])
            removed.append(f"volume {volume['VolumeId']}")
    return removed


def left(run_id: str, target: Target) -> list[str]:
    """What of a run is still there, in words: for the message after a clean-up that failed."""
    client = aws.ec2(target)
    with aws.explained("what is left could not be listed"):
        found = [f"instance {one['InstanceId']}" for one in _alive(client, run_id)]
        keys = client.describe_key_pairs(Filters=_mine(run_id))["KeyPairs"]
        groups = client.describe_security_groups(Filters=_mine(run_id))["SecurityGroups"]
        found += [f"key pair {key['KeyName']}" for key in keys]
        found += [f"security group {group['GroupId']}" for group in groups]
    return found


def pause(target: Target) -> float:
    """Seconds between two questions whether EC2 is done: the lab may be asked often."""
    return 2.0 if target.kind == "aws" else 0.1


def forget_key(run: Run) -> None:
    """Delete the private key of a run from this machine."""
    shutil.rmtree(run.folder / "ssh", ignore_errors=True)


def tags(run_id: str, **more: str) -> list[Any]:
    """EC2 tags with the run's id first."""
    return [{"Key": RUN_TAG, "Value": run_id}, *({"Key": k, "Value": v} for k, v in more.items())]


def _tagged(kind: Any, run: Run) -> Any:
    return {"ResourceType": kind, "Tags": tags(run.id, Name=f"kiln-{run.id}")}


def _mine(run_id: str) -> list[Any]:
    return [{"Name": f"tag:{RUN_TAG}", "Values": [run_id]}]


def _alive(client: EC2Client, run_id: str) -> Iterable[Any]:
    states = ["pending", "running", "stopping", "stopped", "shutting-down"]
    pages = client.get_paginator("describe_instances").paginate(
        Filters=[*_mine(run_id), {"Name": "instance-state-name", "Values": states}]
    )
    for page in pages:
        for reservation in page["Reservations"]:
            yield from reservation["Instances"]


def _instances(client: EC2Client, run_id: str, target: Target) -> list[str]:
    ids = [instance["InstanceId"] for instance in _alive(client, run_id)]
    if ids:
        client.terminate_instances(InstanceIds=ids)
        deadline = time.monotonic() + _TERMINATE_TIMEOUT
        while any(one["InstanceId"] in ids for one in _alive(client, run_id)):
            if time.monotonic() > deadline:
                raise world_failed(f"{', '.join(ids)} is still there {_TERMINATE_TIMEOUT} s after")
            time.sleep(pause(target))
    return [f"instance {one}" for one in ids]


def _images(client: EC2Client, run_id: str) -> list[str]:
    removed = []
    # Packer tags an AMI after it has made it; it bears the run's id in its name from the start.
    by_name: list[Any] = [{"Name": "name", "Values": [f"*-{run_id}"]}]
    found = {
        image["ImageId"]: image
        for filters in (_mine(run_id), by_name)
        for image in client.describe_images(Owners=["self"], Filters=filters)["Images"]
    }
    for image in found.values():
        client.deregister_image(ImageId=image["ImageId"])
        removed.append(f"AMI {image['ImageId']}")
        for device in image.get("BlockDeviceMappings", []):
            snapshot = device.get("Ebs", {}).get("SnapshotId")
            if snapshot:
                client.delete_snapshot(SnapshotId=snapshot)
                removed.append(f"snapshot {snapshot}")
    return removed


def _vpc(client: EC2Client, subnet_id: str | None) -> str:
    if subnet_id:
        return client.describe_subnets(SubnetIds=[subnet_id])["Subnets"][0]["VpcId"]
    found = client.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not found:
        raise world_failed(
            "this region has no default VPC", hint="name a subnet with --subnet-id subnet-…"
        )
    return found[0]["VpcId"]


def _own_address(target: Target) -> str:
    """The address that EC2 sees this machine under, as a /32."""
    if target.kind == "lab":
        from lab import settings

        return f"{settings.current().gateway}/32"
    try:
        with urllib.request.urlopen(_CHECK_IP, timeout=10) as answer:
            return f"{ipaddress.ip_address(answer.read().decode().strip())}/32"
    except (OSError, ValueError) as error:
        raise world_failed(
            f"this machine's public address is unknown ({_CHECK_IP}: {error})",
            hint="SSH is opened to this one address only, never to 0.0.0.0/0",
        ) from None
