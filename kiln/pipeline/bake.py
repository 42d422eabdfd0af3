"""Runs Packer on one recipe's HCL: its variables, its events, the AMI."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from kiln.base import stopping
from kiln.base.errors import KilnError, operation_failed
from kiln.base.progress import Stage
from kiln.base.stopping import Stop
from kiln.cloud import aws, resources, runs
from kiln.cloud.target import Target
from kiln.packer import program, render
from kiln.packer.output import waits_for
from kiln.packer.program import Event, Packer
from kiln.pipeline.draft import Draft
from kiln.pipeline.failure import FailureReader, ProvisionerError
from kiln.pipeline.plan import Plan


def bake(
    plan: Plan,
    packer: Packer,
    draft: Draft,
    access: resources.Access,
    stage: Stage,
    stop: Stop,
) -> tuple[str, dict[str, float]]:
    """Run Packer on a plan's HCL; the id of the AMI in the plan's region, and each component's
    seconds. The draft is told what it launches.

    Raises ProvisionerError if a provisioner fails, KilnError (exit status 1) if Packer does, and
    StoppedError if `stop` was set; or what `stop` was given up for.
    """
    target, run, launched = plan.target, draft.run, draft.launched
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
        "instance_type": plan.instance_type,
        "ami_name": f"{plan.recipe.name}-{run.id}",
        "ssh_source_cidrs": [access.source_cidr],
        "security_group_ids": [access.security_group],
        "ssh_keypair_name": access.key_name,
    }
    for name in ("subnet_id", "kms_key_id", "iam_instance_profile"):
        if getattr(plan.options, name):
            variables[name] = getattr(plan.options, name)
    inputs = target.packer_inputs(run.folder, plan.recipe)
    # In the run's own folder, so that a concurrent edit in the checkout has no effect.
    folder = render.write_inputs(plan.recipe, run.folder)
    program.install_plugins(packer, folder)
    log = run.folder / "packer.log"

    provisioners = FailureReader()

    def on_event(event: Event) -> None:
        if event.kind in ("say", "message", "error"):
            stage.line(event.text)
        wait = waits_for(event, f"instance {launched[-1]}" if launched else "the build instance")
        if wait:
            stage.waits_for(wait.what, limit=wait.limit)
        provisioners.read(event)
        if event.instance_id and event.instance_id not in launched:
            launched.append(event.instance_id)
        if event.instance_id and not packer.has_plugins:
            _require_imdsv2(target, event.instance_id)

    with runs.short_path(run.id, run.folder) as short:
        # Packer reads {{ in a path as a template, and leaves its log behind when it is killed.
        variables["ssh_private_key_file"] = str(short / "run" / "ssh" / access.key_file.name)
        result = program.run_build(
            packer,
            folder,
            log=log,
            manifest=run.folder / "manifest.json",
            variables=variables,
            var_files=list(inputs.var_files),
            on_event=on_event,
            stop=stop,
            environment={
                **inputs.environment,
                **stopping.run_environment(run.id),
                "TMPDIR": str(short),
            },
        )
    draft.cut_short = result.cut_short
    if result.interrupted:
        stop.check()
    if result.exit_status or target.region not in result.amis:
        messages = [line for line in result.errors if line.strip()]
        last = messages[-1] if messages else "see its log"
        failure = provisioners.failure(last)
        if failure:
            known = target.about_packages(failure.missing, plan.recipe)
            failure = replace(failure, hints=(*failure.hints, *known))
            raise ProvisionerError(plan.recipe.name, failure, log=str(log))
        with contextlib.suppress(KilnError):
            last = "; ".join([last, *resources.ended_by_ec2(target, run.id)])
        raise operation_failed(
            f"{plan.recipe.name}: packer build failed: {last}",
            hint="\n  ".join(filter(None, [aws.hint_in(last), f"the whole log: {log}"])),
        )
    return result.amis[target.region], provisioners.seconds()


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
