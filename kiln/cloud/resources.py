"""What a run creates in EC2 besides the AMI, and its removal."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.account import Account
from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import RUN_ID
from kiln.cloud import aws
from kiln.cloud.network import Network, find_network
from kiln.cloud.removal import Resource, delete_resource
from kiln.cloud.runs import Run
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# Seconds. EC2 documents no limit for a termination; minutes are usual.
_TERMINATE_TIMEOUT = 600


@dataclass(frozen=True)
class Access:
    """Access to a run's instances: its own key pair, and a security group of its own or those that
    the settings name."""

    key_name: str
    key_file: Path
    security_groups: tuple[str, ...]
    network: Network


def make_access(run: Run, target: Target, account: Account) -> Access:
    """Create a key pair, and a security group that opens port 22 to this machine's address, as far
    as the settings do not have it otherwise.

    Raises KilnError (exit status 1) if AWS refuses, or if this machine's address is unknown.
    """
    client = aws.ec2(target)
    network = find_network(account, target)
    with aws.explained("the key pair could not be created"):
        key = client.create_key_pair(
            KeyName=f"kiln-{run.id}",
            KeyType="ed25519",
            TagSpecifications=[_tagged("key-pair", run, account)],
        )
    folder = run.folder / "ssh"
    folder.mkdir(mode=0o700)
    key_file = folder / "key.pem"
    key_file.touch(mode=0o600)
    key_file.write_text(key["KeyMaterial"])
    groups = account.security_group_ids or (_make_group(client, run, network, account),)
    return Access(f"kiln-{run.id}", key_file, groups, network)


def _make_group(client: EC2Client, run: Run, network: Network, account: Account) -> str:
    with aws.explained("the security group could not be created"):
        group = client.create_security_group(
            GroupName=f"kiln-{run.id}",
            Description=f"AMI Kiln run {run.id}: SSH from the machine that builds",
            VpcId=network.vpc_id,
            TagSpecifications=[_tagged("security-group", run, account)],
        )["GroupId"]
        if network.by_session:
            return group
        client.authorize_security_group_ingress(
            GroupId=group,
            IpPermissions=[
                {
                    "IpProtocol": "tcp",
                    "FromPort": 22,
                    "ToPort": 22,
                    "IpRanges": [
                        {"CidrIp": cidr, "Description": "the machine that builds"}
                        for cidr in network.source_cidrs
                    ],
                }
            ],
        )
    return group


@dataclass
class Removal:
    """What a clean-up removed, AWS's errors for what it could not remove, and what that is."""

    removed: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def remove(
    run_id: str,
    target: Target,
    *,
    amis: bool,
    launched: Sequence[str] = (),
    patient: bool = True,
    hurried: Callable[[], bool] = lambda: False,
) -> Removal:
    """Remove a run's resources; with `amis` also its AMIs and their snapshots.

    `launched`: the instances that the run knows of, which are ended even where EC2 does not say
    what the run has. Without `patient` EC2 is asked only twice where it throttles or fails; once
    `hurried` is true, nothing is waited for.
    A failure does not stop the removal of the rest. AWS's errors are collected, not raised.
    Raises KilnError (exit status 2) if `run_id` is not a run's id.
    """
    vocabulary.RUN_ID.required(run_id, "the run id")
    client = aws.ec2(target) if patient else aws.ec2(target, attempts=2)
    done = Removal()
    _end_instances(client, run_id, target, launched, hurried, done)
    resources: list[Resource] = []
    for kind, find in resource_finders(amis).items():
        with _noted(done, f"{kind}s: EC2 does not say whether there are any"):
            resources += find(client, run_id)
    untagged = [resource.id for resource in resources if not resource.tagged]
    if untagged:
        # docs/iam-policy.json allows removal only of resources tagged with a run id.
        with _noted(done):
            client.create_tags(Resources=untagged, Tags=tags(run_id))
    for resource in resources:
        with _noted(done, str(resource)):
            delete_resource(client, resource)
            done.removed.append(str(resource))
    return done


def forget_key(run: Run) -> None:
    """Delete the private key of a run from this machine."""
    shutil.rmtree(run.folder / "ssh", ignore_errors=True)


def tags(run_id: str, **more: str) -> list[Any]:
    """EC2 tags, the run's id first."""
    return [{"Key": RUN_ID, "Value": run_id}, *({"Key": k, "Value": v} for k, v in more.items())]


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


def _tagged(kind: Any, run: Run, account: Account) -> Any:
    return {"ResourceType": kind, "Tags": tags(run.id, **account.tags, Name=f"kiln-{run.id}")}


def _mine(run_id: str) -> list[Any]:
    return [{"Name": f"tag:{RUN_ID}", "Values": [run_id]}]


def live_instances(client: EC2Client, run_id: str) -> Iterable[Any]:
    states = ["pending", "running", "stopping", "stopped", "shutting-down"]
    pages = client.get_paginator("describe_instances").paginate(
        Filters=[*_mine(run_id), {"Name": "instance-state-name", "Values": states}]
    )
    for page in pages:
        yield from _instances_in(page, run_id)


def _instances_in(page: Any, run_id: str) -> list[Any]:
    """The run's instances in a page of DescribeInstances."""
    instances = [i for reservation in page["Reservations"] for i in reservation["Instances"]]
    return _of_run(instances, run_id)


def _of_run(described: Iterable[Any], run_id: str) -> list[Any]:
    """Those whose tag is exactly the run's id.

    EC2's filters take wildcards: an answer may hold more than the value means.
    """
    return [resource for resource in described if _is_tagged(resource, run_id)]


@contextmanager
def _noted(done: Removal, *left: str) -> Iterator[None]:
    """Collect AWS's errors instead of raising them, and `left`, the resources that remain then.

    A resource that no longer exists is not a failure.
    """
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
        done.failures.append(str(error))
        done.left += left


def _end_instances(
    client: EC2Client,
    run_id: str,
    target: Target,
    launched: Sequence[str],
    hurried: Callable[[], bool],
    done: Removal,
) -> None:
    """Terminate the run's instances and wait until they have ended; adds to `done`."""
    alive: list[str] | None = None
    with _noted(done, *([] if launched else ["instances: EC2 does not say whether there are any"])):
        alive = [instance["InstanceId"] for instance in live_instances(client, run_id)]
        # What Packer has ended itself is the run's as well.
        done.removed += [f"instance {instance}" for instance in launched if instance not in alive]
    ids = list(launched) if alive is None else alive
    if not ids:
        return
    asked = False
    with _noted(done, *(f"instance {instance}: termination not requested" for instance in ids)):
        client.terminate_instances(InstanceIds=ids)
        asked = True
    unseen = [f"instance {instance}: termination requested, not confirmed" for instance in ids]
    if asked and alive is None:
        done.left += unseen
    elif asked:
        with _noted(done, *unseen):
            _wait_until_ended(client, run_id, target, ids, hurried)
            done.removed += [f"instance {instance}" for instance in ids]


def _wait_until_ended(
    client: EC2Client, run_id: str, target: Target, ids: list[str], hurried: Callable[[], bool]
) -> None:
    """Raises KilnError if the instances have not ended in time, or nobody wants to wait."""
    deadline = time.monotonic() + _TERMINATE_TIMEOUT
    while any(instance["InstanceId"] in ids for instance in live_instances(client, run_id)):
        if hurried():
            raise operation_failed(f"{', '.join(ids)} not waited for until terminated")
        if time.monotonic() > deadline:
            raise operation_failed(f"{', '.join(ids)} not terminated after {_TERMINATE_TIMEOUT} s")
        time.sleep(target.poll_seconds)


def resource_finders(amis: bool) -> dict[str, Callable[[EC2Client, str], list[Resource]]]:
    """Kind → the function that finds a run's resources of it, in the order of removal.

    Instances are not among them.
    """
    of_images = {"AMI": _images, "snapshot": _snapshots} if amis else {}
    others = {"key pair": _key_pairs, "security group": _security_groups, "volume": _volumes}
    return {**of_images, **others}


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
    free: list[Any] = [*_mine(run_id), {"Name": "status", "Values": ["available"]}]
    volumes = client.describe_volumes(Filters=free)["Volumes"]
    return [Resource("volume", volume["VolumeId"]) for volume in _of_run(volumes, run_id)]


def _is_tagged(resource: Any, run_id: str) -> bool:
    return {"Key": RUN_ID, "Value": run_id} in resource.get("Tags", [])
