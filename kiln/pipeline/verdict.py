"""Decides whether an AMI is verified: boots a fresh instance, runs the checks, tags the AMI."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from kiln.base.errors import operation_failed
from kiln.base.progress import Progress, Stage
from kiln.base.stopping import Stop
from kiln.base.tags import VERIFIED
from kiln.cloud import aws, resources
from kiln.cloud.machine import booted
from kiln.cloud.target import Target
from kiln.pipeline import ami_checks
from kiln.pipeline.ami_checks import Verdict
from kiln.pipeline.baked import ON_THE_IMAGE
from kiln.pipeline.draft import Draft, now
from kiln.pipeline.record import Checks


def judge(
    draft: Draft,
    access: resources.Access,
    image: dict[str, Any],
    *,
    user: str,
    stop: Stop,
    **network: str | None,
) -> None:
    """Boot the AMI, run its checks, tag it; notes `checks`, `versions`, `status` in the draft.

    `image` is what `describe` returned; `network` goes to `booted`. If the draft's recipe is to
    come from the image (`recipe_from`), it is read first.
    Raises KilnError (exit status 1) if the instance does not boot, the checks do not run to their
    end, or the AMI cannot be tagged; StoppedError as soon as `stop` is set.
    """
    instance_type = str(draft.record.verify_instance_type)
    progress, target = draft.progress, draft.target
    with ExitStack() as until_checked:
        with progress.stage("boot the AMI") as stage:
            machine = until_checked.enter_context(
                booted(
                    image["id"],
                    instance_type,
                    user=user,
                    run_id=draft.run.id,
                    folder=draft.run.folder,
                    access=access,
                    target=target,
                    stop=stop,
                    say=_saying(progress, stage),
                    **network,
                )
            )
            stage.note = f"{machine.instance_id} ({instance_type})"
        if draft.record.recipe_from == ON_THE_IMAGE:
            recipe = machine.read_json("/etc/kiln/recipe.json")
            if not isinstance(recipe, dict):
                raise operation_failed(
                    f"{image['id']} has no readable /etc/kiln/recipe.json, and there is no "
                    "record of its build here: there is nothing to check it against"
                )
            draft.note(recipe=recipe)
        with progress.stage("checks") as stage:
            expected = ami_checks.expectations(draft.record.recipe, instance_type, target, image)
            verdict = ami_checks.run_checks(
                machine, expected, draft.run.folder, stop=stop, on_line=stage.line
            )
            stage.note = _counts(verdict)
        draft.note(
            checks=Checks.of(verdict), versions=machine.read_json("/etc/kiln/version-info.json")
        )
    stop.check()
    mark(target, image["id"], passed=verdict.passed, commit=draft.record.git_commit)
    # The record gets the verdict only after the AMI itself.
    draft.note(status="verified" if verdict.passed else "failed")


def _saying(progress: Progress, stage: Stage) -> Callable[[str], None]:
    """Warnings stay in the output, other lines show what a stage is at."""

    def say(line: str) -> None:
        (progress.say if line.startswith("warning:") else stage.line)(line)

    return say


def mark(target: Target, ami_id: str, *, passed: bool, commit: str) -> None:
    """Tag an AMI with the verdict of its checks: pass or fail, when, by which commit."""
    verdict = f"{'pass' if passed else 'fail'} {now()} {commit}"
    with aws.explained(f"{ami_id} could not be tagged {VERIFIED}"):
        aws.ec2(target).create_tags(Resources=[ami_id], Tags=[{"Key": VERIFIED, "Value": verdict}])


def describe(target: Target, ami_id: str) -> dict[str, Any]:
    """Id, name, creation date and tags of an AMI. Raises KilnError (exit status 1) without one."""
    with aws.explained(f"{ami_id} could not be looked up in {target.region}"):
        images = aws.ec2(target).describe_images(ImageIds=[ami_id])["Images"]
    if not images:
        raise operation_failed(f"there is no AMI {ami_id} in {target.region}")
    image = images[0]
    return {
        "id": ami_id,
        "name": image.get("Name"),
        "created": str(image["CreationDate"]),
        "tags": {tag["Key"]: tag["Value"] for tag in image.get("Tags", [])},
    }


def _counts(verdict: Verdict) -> str:
    return ", ".join(
        f"{verdict.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")
    )
