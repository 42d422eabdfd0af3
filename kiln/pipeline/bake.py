"""Runs Packer on one recipe's HCL: its variables, its events, the AMI."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.base import stopping
from kiln.base.account import Account
from kiln.base.errors import KilnError, operation_failed
from kiln.base.progress import Stage
from kiln.base.stopping import Stop
from kiln.cloud import aws, reservations, resources, runs
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.packer import program, render, settings
from kiln.packer.output import waits_for
from kiln.packer.program import Event, Packer
from kiln.pipeline.draft import Draft
from kiln.pipeline.failure import FailureReader, ProvisionerError
from kiln.pipeline.plan import Plan

# EC2's and its fleets' answers to a launch for which there is no capacity just now, or no quota:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
_NO_CAPACITY = re.compile(
    r"\b(InsufficientInstanceCapacity|VcpuLimitExceeded|MaxSpotInstanceCountExceeded"
    r"|UnfulfillableCapacity|SpotMaxPriceTooLow)\b"
)


@dataclass(frozen=True)
class BakedAmi:
    """The AMI in the plan's region, the type that baked it, and each component's seconds."""

    ami_id: str
    instance_type: str
    component_seconds: dict[str, float]


def bake(
    plan: Plan,
    packer: Packer,
    draft: Draft,
    access: resources.Access,
    stage: Stage,
    stop: Stop,
) -> BakedAmi:
    """Run Packer on a plan's HCL, on the first of its instance types that EC2 has. The draft is
    told what is launched.

    Raises ProvisionerError if a provisioner fails, KilnError (exit status 1) if Packer does, and
    StoppedError if `stop` was set; or what `stop` was given up for.
    """
    target, run = plan.target, draft.run
    variables: dict[str, Any] = {
        **render.variables(
            plan.recipe,
            run_id=run.id,
            git_commit=runs.git_commit(),
            target=target.kind,
            input_digest=plan.input_digest,
        ),
        "region": target.region,
        "source_ami": plan.source.ami_id,
        "ami_name": f"{plan.recipe.name}-{run.id}",
        "ssh_source_cidrs": list(access.network.source_cidrs),
        "security_group_ids": list(access.security_groups),
        "ssh_keypair_name": access.key_name,
        "subnet_id": access.network.subnet_id or "",
        "ssh_interface": _interface(plan.account, access),
        **settings.of_account(plan.account),
    }
    inputs = target.packer_inputs(run.folder, plan.recipe)
    # In the run's own folder, so that a concurrent edit in the checkout has no effect.
    folder = render.write_inputs(plan.recipe, run.folder)
    program.install_plugins(packer, folder)
    log = run.folder / "packer.log"
    for number, instance_type in enumerate(plan.instance_types, 1):
        watched = _Watched(plan, packer, stage, draft)
        with runs.short_path(run.id, run.folder) as short:
            # Packer reads {{ in a path as a template, and leaves its log behind when it is killed.
            key_file = str(short / "run" / "ssh" / access.key_file.name)
            result = program.run_build(
                packer,
                folder,
                log=log,
                manifest=run.folder / "manifest.json",
                variables={
                    **variables,
                    **_of_type(plan, instance_type, packer),
                    "ssh_private_key_file": key_file,
                },
                var_files=list(inputs.var_files),
                on_event=watched.event,
                stop=stop,
                environment={
                    **inputs.environment,
                    **stopping.run_environment(run.id),
                    "TMPDIR": str(short),
                },
            )
        short_of = next(filter(_NO_CAPACITY.search, result.errors), "")
        left = plan.instance_types[number:]
        if not (result.exit_status and short_of and left) or result.interrupted:
            break
        stage.line(f"{instance_type} cannot be had ({short_of.strip()}): next {left[0]}")
    draft.cut_short = result.cut_short
    if result.interrupted:
        stop.check()
    if result.exit_status or target.region not in result.amis:
        raise _failed(plan, run, result, watched.provisioners, log)
    return BakedAmi(result.amis[target.region], instance_type, watched.provisioners.seconds())


class _Watched:
    """What Packer's output of one try tells."""

    def __init__(self, plan: Plan, packer: Packer, stage: Stage, draft: Draft) -> None:
        self.provisioners = FailureReader()
        self._plan, self._packer, self._stage, self._draft = plan, packer, stage, draft
        self._instance = "the build instance"

    def event(self, event: Event) -> None:
        """Take a line of Packer's."""
        if event.kind in ("say", "message", "error"):
            self._stage.line(event.text)
        wait = waits_for(event, self._instance)
        if wait:
            self._stage.waits_for(wait.what, limit=wait.limit)
        self.provisioners.read(event)
        if event.instance_id:
            self._instance = f"instance {event.instance_id}"
        if event.instance_id and event.instance_id not in self._draft.launched:
            self._draft.launched.append(event.instance_id)
        if event.instance_id and not self._packer.has_plugins:
            _require_imdsv2(self._plan.target, event.instance_id)


def _interface(account: Account, access: resources.Access) -> str:
    """How Packer reaches the instance; empty: by its public address, if it has one."""
    inside = access.network.ssh_interface == "private_ip"
    return account.ssh_interface or ("private_ip" if inside else "")


def _of_type(plan: Plan, instance_type: str, packer: Packer) -> dict[str, str]:
    """The variables of one try. Raises KilnError: exit status 2 if Packer is too old for it."""
    reservation = reservations.serving(plan.account, plan.target, instance_type)
    if reservation and not packer.has_plugins:
        raise KilnError(
            f"{packer} cannot launch in the capacity reservation {reservation}",
            hint="use Packer 1.7 or newer, or bake on another type: --instance-type c7i.4xlarge",
        )
    return {"instance_type": instance_type, "capacity_reservation_id": reservation or ""}


def _failed(
    plan: Plan, run: Run, result: program.BuildResult, provisioners: FailureReader, log: Path
) -> KilnError:
    """Why a bake failed."""
    messages = [line for line in result.errors if line.strip()]
    last = messages[-1] if messages else "see its log"
    failure = provisioners.failure(last)
    if failure:
        known = plan.target.about_packages(failure.missing, plan.recipe)
        failure = replace(failure, hints=(*failure.hints, *known))
        return ProvisionerError(plan.recipe.name, failure, log=str(log))
    with contextlib.suppress(KilnError):
        last = "; ".join([last, *resources.ended_by_ec2(plan.target, run.id)])
    return operation_failed(
        f"{plan.recipe.name}: packer build failed: {aws.without_encoded(last)}",
        hint="\n  ".join(filter(None, [aws.hint_in(last), f"the whole log: {log}"])),
    )


def finish_image(plan: Plan, ami_id: str) -> None:
    """Set what Packer 1.6 cannot, so that the AMI is the same with every version of Packer."""
    with aws.explained(f"{ami_id} could not be set to IMDSv2 by default"):
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-IMDS-new-instances.html
        aws.ec2(plan.target).modify_image_attribute(ImageId=ami_id, ImdsSupport={"Value": "v2.0"})


def _require_imdsv2(target: Target, instance_id: str) -> None:
    """Make the build instance require IMDSv2; Packer 1.6 has no `metadata_options` for that."""
    with aws.explained(f"{instance_id} could not be made to require IMDSv2"):
        aws.ec2(target).modify_instance_metadata_options(
            InstanceId=instance_id, HttpTokens="required", HttpEndpoint="enabled"
        )
