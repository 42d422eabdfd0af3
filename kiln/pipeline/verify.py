"""`verify`: an AMI that exists already."""

from __future__ import annotations

import json

from kiln.base import needs
from kiln.base.errors import operation_failed
from kiln.base.progress import Progress
from kiln.base.stopping import Stop, on_signals
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix import flags, load
from kiln.pipeline import ami_checks, build_row
from kiln.pipeline import build as builds


def run(
    ami_id: str,
    instance_type: str | None,
    *,
    target: Target,
    install: bool,
    as_json: bool,
) -> int:
    """Boot the AMI, run its checks, tag it; the exit code."""
    flags.ami(ami_id)
    flags.instance_type("instance-type", instance_type)
    progress = Progress()
    progress.say(str(target))
    target.check_host()
    needs.ensure("ssh", *target.host_packages([]), install=install, say=progress.say)
    target.prepare([], progress.say)
    with aws.explained(f"{ami_id} could not be looked up in {target.region}"):
        images = aws.ec2(target).describe_images(ImageIds=[ami_id])["Images"]
    if not images:
        raise operation_failed(f"there is no AMI {ami_id} in {target.region}")
    tags = {tag["Key"]: tag["Value"] for tag in images[0].get("Tags", [])}
    recipe = ami_checks.recipe_on(tags, load.load_recipes())
    needs.ensure(*target.host_packages([recipe]), install=install, say=progress.say)
    if target.bills:
        kind = instance_type or recipe.verify_instance_type
        progress.say(f"will launch: {kind} in {target.region} for {ami_id}")
        target = target.identified()
    build_row.clean_dead_runs(target, progress)
    stop = Stop()
    with on_signals(stop):
        built = build_row.verify_ami(ami_id, recipe, target, instance_type, progress, stop)
    print(json.dumps(built.record, indent=2) if as_json else builds.summary(built.record))
    return 0 if built.good else 1
