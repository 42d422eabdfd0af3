"""`verify`: an AMI that exists already."""

from __future__ import annotations

import json
from dataclasses import replace

from kiln.base import needs
from kiln.base.errors import world_failed
from kiln.base.progress import Progress
from kiln.base.stopping import Stop, on_signals
from kiln.cloud import aws
from kiln.cloud.target import choose
from kiln.matrix import flags, load
from kiln.pipeline import ami_checks, build_row
from kiln.pipeline import build as builds


def run(
    ami_id: str,
    instance_type: str | None,
    *,
    target_kind: str,
    region: str | None,
    install: bool,
    as_json: bool,
) -> int:
    """Boot the AMI, run its checks, tag it; the exit code."""
    flags.ami(ami_id)
    flags.instance_type("instance-type", instance_type)
    progress = Progress()
    target = choose(target_kind, region)
    progress.say(str(target))
    needs.ensure("ssh", install=install, say=progress.say)
    if target.kind == "lab":
        from lab import control

        needs.lab_can_run()
        needs.ensure("lab", install=install, say=progress.say)
        control.up()
    with aws.explained(f"{ami_id} could not be looked up in {target.region}"):
        images = aws.ec2(target).describe_images(ImageIds=[ami_id])["Images"]
    if not images:
        raise world_failed(f"there is no AMI {ami_id} in {target.region}")
    tags = {tag["Key"]: tag["Value"] for tag in images[0].get("Tags", [])}
    recipe = ami_checks.recipe_on(tags, load.load_recipes())
    if target.emulates(recipe.arch):
        needs.ensure(f"emulate_{recipe.arch}", install=install, say=progress.say)
    if target.kind == "aws":
        kind = instance_type or recipe.verify_instance_type
        progress.say(f"will launch: {kind} in {target.region} for {ami_id}")
        target = replace(target, account=aws.account(target))
    build_row.clean_dead_runs(target, progress)
    stop = Stop()
    with on_signals(stop):
        built = build_row.verify_ami(ami_id, recipe, target, instance_type, progress, stop)
    print(json.dumps(built.record, indent=2) if as_json else builds.summary(built.record))
    return 0 if built.good else 1
