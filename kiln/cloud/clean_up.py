"""The clean-up of a run: ends its instances and removes its other resources."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.base import vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.cloud import aws
from kiln.cloud.removal import Resource, delete_resource, is_not_there
from kiln.cloud.resources import live_instances, resource_finders, tags
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# Seconds. EC2 documents no limit for a termination; minutes are usual.
_TERMINATE_TIMEOUT = 600
# How often EC2 is asked for an instance that it does not know.
_LOOKS = 5


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
    kept: Collection[str] = (),
    patient: bool = True,
    hurried: Callable[[], bool] = lambda: False,
) -> Removal:
    """Remove a run's resources; with `amis` also its AMIs and their snapshots.

    `launched`: the instances that the run knows of, which are ended even where EC2 does not say
    what the run has. `kept`: the instances and security groups that stay. Without `patient` EC2 is
    asked only twice where it throttles or fails; once `hurried` is true, nothing is waited for.
    A failure does not stop the removal of the rest. AWS's errors are collected, not raised.
    Raises KilnError (exit status 2) if `run_id` is not a run's id.
    """
    vocabulary.RUN_ID.required(run_id, "the run id")
    client = aws.ec2(target) if patient else aws.ec2(target, attempts=2)
    done = Removal()
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
            if not resource.tagged:
                # docs/iam-policy.json allows removal only of resources tagged with a run id.
                client.create_tags(Resources=[resource.id], Tags=tags(run_id))
            delete_resource(client, resource, hurried=lambda: not patient or hurried())
            done.removed.append(str(resource))
    return done


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
                if not is_not_there(error):
                    raise
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
    done.left += [f"instance {each}" for each in launched if each in kept]
    launched = [each for each in launched if each not in kept]
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
            _wait_until_ended(client, run_id, target, requested, hurried)
            done.removed += [f"instance {instance}" for instance in requested]


def _has_not_ended(
    client: EC2Client, instance_id: str, target: Target, hurried: Callable[[], bool]
) -> bool:
    """Whether an instance that EC2 does not find by the run's tag is there all the same.

    EC2 may not show an instance in the first seconds after its launch, and shows one that has ended
    for about an hour:
    https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
    """
    from botocore.exceptions import ClientError

    for _ in range(_LOOKS):
        try:
            answer = client.describe_instances(InstanceIds=[instance_id])
        except ClientError as error:
            if error.response["Error"].get("Code") != "InvalidInstanceID.NotFound":
                raise
        else:
            instance = answer["Reservations"][0]["Instances"][0]
            return instance["State"]["Name"] != "terminated"
        if hurried():
            break
        time.sleep(target.poll_seconds)
    return False


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
        time.sleep(target.wait_seconds)
