"""A bake that continues where another one failed, on the instance that was kept.

The AMI is what both bakes have made of that machine. Nothing shows that its recipe alone makes the
same, so the AMI has no digest, is never tagged as verified, and cannot be published.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.progress import Stage
from kiln.base.stopping import Stop
from kiln.base.tags import CONTINUED
from kiln.cloud import aws
from kiln.cloud.runs import KeptRun
from kiln.cloud.target import Target
from kiln.packer import template_values
from kiln.packer.part import Part
from kiln.packer.program import Packer
from kiln.pipeline import bake, kept_instance
from kiln.pipeline.bake import BakedAmi
from kiln.pipeline.failure import ProvisionerError
from kiln.pipeline.plan import Plan
from kiln.pipeline.record_draft import Draft

# In the place of digests, in tags.
NO_DIGEST = "none: continued on a kept instance"
# Seconds; a large volume's first snapshot takes many minutes.
_STOP_TIMEOUT = 900.0
_IMAGE_TIMEOUT = 3600.0


def bake_on(
    plan: Plan, packer: Packer, draft: Draft, on: KeptRun, stage: Stage, stop: Stop
) -> BakedAmi:
    """Bake the components from `plan.start` on on a kept instance, and make its AMI.

    Raises what `bake.bake` raises; the instance is kept then, and its deadline begins again, unless
    nobody can log in any more.
    """
    order = plan.recipe.components
    part = Part(order[order.index(str(plan.start)) :], again=True, builder="null")
    running = kept_instance.running_machine(plan, on)
    kept_instance.renew(plan, on)
    if not kept_instance.stop_timer(running, on.run_id, on.key_file):
        raise operation_failed(
            f"{running.user}@{running.address} cannot be reached over SSH",
            hint=f"the key is {on.key_file}",
        )
    try:
        seconds = bake.go_on(plan, packer, draft, part, running.address, on.key_file, stage, stop)
        ami_id = _image(plan, draft, on, stage, stop)
    except ProvisionerError as error:
        kept_instance.keep_on(plan, draft, on, running, error)
        raise
    except BaseException:
        # Also where no AMI could be made of it: it may still run. If not, the reason counts.
        with contextlib.suppress(KilnError, OSError):
            kept_instance.set_timer(running, on.run_id, on.key_file)
        raise
    return BakedAmi(ami_id, plan.instance_type, seconds)


def _image(plan: Plan, draft: Draft, on: KeptRun, stage: Stage, stop: Stop) -> str:
    """The AMI of a machine, with the tags that Packer gives one; the machine is stopped."""
    target, run = plan.target, draft.run
    client: Any = aws.ec2(target)
    with aws.explained(f"{on.instance_id} could not be made into an AMI"):
        client.stop_instances(InstanceIds=[on.instance_id])
        stage.waits_for(f"{on.instance_id} to stop", limit=_STOP_TIMEOUT)
        _wait(
            lambda: client.describe_instances(InstanceIds=[on.instance_id])["Reservations"][0][
                "Instances"
            ][0]["State"]["Name"],
            "stopped",
            on.instance_id,
            _STOP_TIMEOUT,
            target,
            stop,
        )
        name = f"{plan.recipe.name}-{run.id}"
        own = _tags(plan, run.id, draft.record.git_commit)
        tags = {**plan.account.tags, **own, "Name": name, CONTINUED: on.run_id}
        specified = [{"Key": key, "Value": value} for key, value in tags.items()]
        ami_id = str(
            client.create_image(
                InstanceId=on.instance_id,
                Name=name,
                Description=f"{plan.recipe.name}, continued on a kept instance",
                TagSpecifications=[
                    {"ResourceType": kind, "Tags": specified} for kind in ("image", "snapshot")
                ],
            )["ImageId"]
        )
        stage.waits_for(f"{ami_id} to become available", limit=_IMAGE_TIMEOUT)
        _wait(
            lambda: _image_state(client, ami_id),
            "available",
            ami_id,
            _IMAGE_TIMEOUT,
            target,
            stop,
        )
    return ami_id


def _image_state(client: Any, ami_id: str) -> str:
    """The state of a new AMI, which EC2 may not list in the first seconds:
    https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""
    # By a filter, because an id that EC2 does not know yet is an error.
    filters = [{"Name": "image-id", "Values": [ami_id]}]
    images = client.describe_images(Filters=filters)["Images"]
    return str(images[0]["State"]) if images else "pending"


def _tags(plan: Plan, run_id: str, git_commit: str) -> dict[str, str]:
    return template_values.tags_of(
        plan.recipe,
        {
            "source_ami": plan.source.ami_id,
            "git_commit": git_commit,
            "recipe_digest": NO_DIGEST,
            "input_digest": NO_DIGEST,
            "run_id": run_id,
            "target": plan.target.kind,
        },
    )


def _wait(state: Any, wanted: str, what: str, timeout: float, target: Target, stop: Stop) -> None:
    """Wait until EC2 says that something is as it should be."""
    deadline = time.monotonic() + timeout
    while (now := str(state())) != wanted:
        if now in ("failed", "invalid", "error", "terminated"):
            raise operation_failed(f"{what} is {now}")
        if time.monotonic() > deadline:
            raise operation_failed(f"{what} is still {now} after {timeout:.0f} s")
        stop.sleep(target.wait_seconds)
