"""The clean-up of a run: finds the resources in EC2 that carry its id, and removes them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import RUN_ID
from kiln.cloud import aws
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_ec2 import EC2Client

# Seconds. EC2 documents no limit for a termination; minutes are usual.
_TERMINATE_TIMEOUT = 600
# Seconds for which EC2 is asked for an instance that it does not know.
_UNKNOWN = 10.0
# EC2 says for a moment that a snapshot is in use after its AMI has been deregistered, a security
# group or a volume after its instance has ended:
# https://github.com/boto/boto3/issues/3019, https://github.com/hashicorp/packer/issues/278
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


@dataclass
class Removal:
    """Result of a clean-up: resources that it removed or could not remove, with AWS's errors."""

    removed: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def counts(self) -> str:
        """Numbers of removed resources, by kind: 2 instances, 1 key pair."""
        kinds = Counter(name.rpartition(" ")[0] for name in self.removed)
        return ", ".join(f"{n} {kind}{'s'[: n > 1]}" for kind, n in kinds.items())


def tags(run_id: str, /, **more: str) -> list[Any]:
    """EC2 tags, the run's id first."""
    return [{"Key": RUN_ID, "Value": run_id}, *({"Key": k, "Value": v} for k, v in more.items())]


def remove(
    run_id: str,
    target: Target,
    *,
    amis: bool,
    launched: Sequence[str] = (),
    kept: Collection[str] = (),
    patient: bool = True,
    hurried: Callable[[], bool] = lambda: False,
) -> Removal:
    """Remove a run's resources; with `amis` also its AMIs and their snapshots.

    `launched`: the instances that the run knows of, which are ended even where EC2 does not say
    what the run has. `kept`: the instances and security groups that stay. Without `patient` EC2 is
    asked only twice where it throttles or fails; once `hurried` is true, nothing is waited for.
    A failure does not stop the removal of the rest. AWS's errors are collected, not raised.
    """
    vocabulary.RUN_ID.required(run_id, "the run id")
    client = aws.ec2(target) if patient else aws.ec2(target, attempts=2)
    done = Removal()
    done.left += [f"instance {each}" for each in launched if each in kept]
    launched = [each for each in launched if each not in kept]
    _end_instances(client, run_id, target, launched, kept, hurried, done)
    resources: list[Resource] = []
    for kind, find in resource_finders(amis).items():
        with _noted(done, f"{kind}s: EC2 does not say whether there are any"):
            resources += find(client, run_id)
    for resource in resources:
        if resource.id in kept:
            done.left.append(str(resource))
            continue
        with _noted(done, str(resource)):
            _delete_own(client, run_id, resource, lambda: not patient or hurried())
            done.removed.append(str(resource))
    return done


def remove_images(run_id: str, target: Target) -> None:
    """Deregister a run's AMIs, and delete their snapshots. AWS's errors are raised."""
    client, finders = aws.ec2(target), resource_finders(amis=True)
    with aws.explained("the AMI that Packer gave up on was not removed"):
        found = [each for kind in ("AMI", "snapshot") for each in finders[kind](client, run_id)]
        for resource in found:
            _delete_own(client, run_id, resource)


def _delete_own(
    client: EC2Client, run_id: str, resource: Resource, hurried: Callable[[], bool] = lambda: False
) -> None:
    if not resource.tagged:
        # docs/iam-policy.json allows removal only of resources tagged with a run id.
        client.create_tags(Resources=[resource.id], Tags=tags(run_id))
    delete_resource(client, resource, hurried=hurried)


@contextmanager
def _noted(done: Removal, *left: str) -> Iterator[None]:
    """Collect AWS's errors instead of raising them, and `left`, the resources that remain then.

    A resource that no longer exists is not a failure.
    """
    try:
        with aws.explained("not removed"), aws.tolerated(is_not_there):
            yield
    except KilnError as error:
        done.failures.append(str(error))
        done.left += left


def _end_instances(
    client: EC2Client,
    run_id: str,
    target: Target,
    launched: Sequence[str],
    kept: Collection[str],
    hurried: Callable[[], bool],
    done: Removal,
) -> None:
    """Terminate the run's instances and wait until they have ended; adds to `done`."""
    alive: list[str] = []
    certain = False  # that these are all
    with _noted(done, *([] if launched else ["instances: EC2 does not say whether there are any"])):
        ids = [instance["InstanceId"] for instance in live_instances(client, run_id)]
        alive = [each for each in ids if each not in kept]
        unseen = [instance for instance in launched if instance not in alive]
        alive += [each for each in unseen if _has_not_ended(client, each, target, hurried)]
        certain = True
        # What Packer has ended itself is the run's as well.
        done.removed += [f"instance {instance}" for instance in launched if instance not in alive]
    requested: list[str] = []
    # Of several, EC2 ends none if it does not know one, as one that ended an hour ago:
    # https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html
    for each in alive if certain else dict.fromkeys([*alive, *launched]):
        with _noted(done, f"instance {each}: termination not requested"):
            client.terminate_instances(InstanceIds=[each])
            requested.append(each)
    unconfirmed = [f"instance {each}: termination requested, not confirmed" for each in requested]
    if not certain:
        done.left += unconfirmed
    elif requested:
        with _noted(done, *unconfirmed):
            wait_until_ended(client, target, requested, hurried)
            done.removed += [f"instance {instance}" for instance in requested]


def _has_not_ended(
    client: EC2Client, instance_id: str, target: Target, hurried: Callable[[], bool]
) -> bool:
    """Return True if an instance that EC2 does not find by the run's tag is there all the same.

    EC2 may not show an instance in the first seconds after its launch, and shows one that has ended
    for about an hour:
    https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
    """
    from botocore.exceptions import ClientError

    deadline = time.monotonic() + _UNKNOWN
    while True:
        try:
            answer = client.describe_instances(InstanceIds=[instance_id])
        except ClientError as error:
            if error.response["Error"].get("Code") != "InvalidInstanceID.NotFound":
                raise
        else:
            instance = answer["Reservations"][0]["Instances"][0]
            return instance["State"]["Name"] != "terminated"
        if hurried() or time.monotonic() > deadline:
            return False
        time.sleep(target.poll_seconds)


def wait_until_ended(
    client: EC2Client, target: Target, ids: list[str], hurried: Callable[[], bool] = lambda: False
) -> None:
    """Wait until these instances, whose end was requested, have ended, or `hurried` is true."""

    def sleep(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if hurried():
                raise operation_failed(f"{', '.join(ids)} not waited for until terminated")
            time.sleep(min(seconds, 0.5))

    aws.wait(
        client,
        "instance_terminated",
        limit=_TERMINATE_TIMEOUT,
        every=target.wait_seconds,
        sleep=sleep,
        # EC2 may still call an instance pending or stopping when it is to end.
        terminal=False,
        InstanceIds=ids,
    )


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
            _DELETE[resource.kind](client, resource.id)
            return
        except ClientError as error:
            in_use = error.response["Error"].get("Code") in _IN_USE
            if not in_use or hurried() or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


_DELETE: dict[str, Callable[[EC2Client, str], object]] = {
    "AMI": lambda client, name: client.deregister_image(ImageId=name),
    "snapshot": lambda client, name: client.delete_snapshot(SnapshotId=name),
    "key pair": lambda client, name: client.delete_key_pair(KeyName=name),
    "security group": lambda client, name: client.delete_security_group(GroupId=name),
    "launch template": lambda client, name: client.delete_launch_template(LaunchTemplateId=name),
    "volume": lambda client, name: client.delete_volume(VolumeId=name),
}


def is_not_there(error: ClientError) -> bool:
    """Return True if EC2 answered that the resource does not exist (any more):
    InvalidGroup.NotFound, InvalidVolume.NotFound, InvalidLaunchTemplateName.NotFoundException, …"""
    code = error.response["Error"].get("Code", "")
    return code.endswith((".NotFound", ".NotFoundException")) or aws.is_gone(error)


def live_instances(client: EC2Client, run_id: str) -> list[Any]:
    """The run's instances that have not ended."""
    states = ["pending", "running", "stopping", "stopped", "shutting-down"]
    return _instances(client, run_id, {"Name": "instance-state-name", "Values": states})


def ended_by_ec2(target: Target, run_id: str) -> list[str]:
    """Return why EC2 ended instances of a run on its own initiative, one text for each instance.

    A KMS key without permission or a lack of capacity shows only here: RunInstances succeeds.
    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
    """
    reasons = []
    with aws.explained("the reason why its instances ended could not be read"):
        for instance in _instances(aws.ec2(target), run_id):
            reason = instance.get("StateReason", {})
            # Client.UserInitiatedShutdown is a client's TerminateInstances: ours or Packer's.
            if reason.get("Code", "") not in ("", "Client.UserInitiatedShutdown"):
                state = instance["State"]["Name"]
                reasons.append(f"{instance['InstanceId']} went to {state}: {reason['Message']}")
    return reasons


def resource_finders(amis: bool) -> dict[str, Callable[[EC2Client, str], list[Resource]]]:
    """Kind → the function that finds a run's resources of it, in the order of removal.

    Instances are not among them.
    """
    of_images = {"AMI": _images, "snapshot": _snapshots} if amis else {}
    others = {"key pair": _key_pairs, "security group": _security_groups, "volume": _volumes}
    return {**of_images, **others, "launch template": _launch_templates}


def _mine(run_id: str) -> list[Any]:
    return [{"Name": f"tag:{RUN_ID}", "Values": [run_id]}]


def _is_tagged(resource: Any, run_id: str) -> bool:
    return {"Key": RUN_ID, "Value": run_id} in resource.get("Tags", [])


def _tagged(kind: str, key: str, described: Iterable[Any], run_id: str) -> list[Resource]:
    """The resources whose tag is exactly the run's id; `key` holds their own id.

    EC2's filters take wildcards: an answer may hold more than the value means.
    """
    return [Resource(kind, each[key]) for each in described if _is_tagged(each, run_id)]


def _instances(client: EC2Client, run_id: str, *filters: Any) -> list[Any]:
    """The run's instances as EC2 describes them, also those that have ended."""
    query = {"Filters": [*_mine(run_id), *filters]}
    found = aws.paginated(client, "describe_instances", "Reservations[].Instances", **query)
    return [instance for instance in found if _is_tagged(instance, run_id)]


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
    # Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
    begins = tuple(
        f"Created by CreateImage({instance['InstanceId']}) for"
        for instance in _instances(client, run_id)
    )
    filters: list[Any] = [_mine(run_id)]
    if of_amis:
        filters.append([{"Name": "snapshot-id", "Values": sorted(of_amis)}])
    if begins:
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
    pairs = client.describe_key_pairs(Filters=_mine(run_id))["KeyPairs"]
    return _tagged("key pair", "KeyName", pairs, run_id)


def _security_groups(client: EC2Client, run_id: str) -> list[Resource]:
    groups = client.describe_security_groups(Filters=_mine(run_id))["SecurityGroups"]
    return _tagged("security group", "GroupId", groups, run_id)


def _volumes(client: EC2Client, run_id: str) -> list[Resource]:
    free: list[Any] = [*_mine(run_id), {"Name": "status", "Values": ["available"]}]
    return _tagged("volume", "VolumeId", client.describe_volumes(Filters=free)["Volumes"], run_id)


def _launch_templates(client: EC2Client, run_id: str) -> list[Resource]:
    """Packer makes one for a Spot instance, and may not come to delete it."""
    templates = client.describe_launch_templates(Filters=_mine(run_id))["LaunchTemplates"]
    return _tagged("launch template", "LaunchTemplateId", templates, run_id)
