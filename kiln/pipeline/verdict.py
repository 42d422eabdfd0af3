"""Decides whether an AMI is verified: boots a fresh instance, runs the checks, tags the AMI."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from kiln.base.account import Account
from kiln.base.errors import operation_failed
from kiln.base.stopping import Stop
from kiln.base.tags import OWN_KERNEL, VERIFIED, TaggedVerdict
from kiln.cloud import aws
from kiln.cloud.access import Access
from kiln.cloud.images import Image
from kiln.cloud.machine import booted
from kiln.cloud.target import OwnKernel, Target
from kiln.pipeline import ami_checks
from kiln.pipeline.ami_checks import Verdict
from kiln.pipeline.baked_recipe import ON_THE_IMAGE, require_components
from kiln.pipeline.record import Checks
from kiln.pipeline.record_draft import Draft


def judge(
    draft: Draft,
    access: Access,
    image: Image,
    *,
    user: str,
    stop: Stop,
    account: Account,
    own_kernel: OwnKernel | None = None,
    keyword: str | None = None,
) -> None:
    """Boot the AMI, run its checks, tag it; notes `checks`, `versions`, `status` in the draft.

    With `keyword`, pytest's -k, only a part is checked; that is not a verdict, and the AMI's tag
    stays as it is.
    `account` goes to `booted`. With `own_kernel` the instance
    boots the AMI's own kernel, whatever the target's other instances do. If the draft's recipe is
    to come from the image (`recipe_from`), it is read first.
    Raises KilnError (exit status 1) if the instance does not boot, the checks do not run to their
    end, or the AMI cannot be tagged; StoppedError as soon as `stop` is set.
    """
    instance_type = str(draft.record.verify_instance_type)
    progress, target = draft.progress, draft.target
    with ExitStack() as until_checked:
        launched_with: Mapping[str, str] = {}
        if own_kernel:
            with progress.stage("disk of the AMI") as stage:
                boots = until_checked.enter_context(target.own_kernel(image.ami_id, own_kernel))
                launched_with, stage.note = boots.tags, boots.how
            draft.record = replace(draft.record, own_kernel=boots.how)
        with progress.stage("boot the AMI") as stage:
            machine = until_checked.enter_context(
                booted(
                    image.ami_id,
                    instance_type,
                    user=user,
                    run_id=draft.run.id,
                    folder=draft.run.folder,
                    access=access,
                    target=target,
                    stop=stop,
                    say=progress.say,
                    waits_for=stage.waits_for,
                    account=account,
                    tags=launched_with,
                    launched=draft.launched.append,
                    tried=draft.tried,
                )
            )
            stage.note = f"{machine.instance_id} ({instance_type})"
        if draft.record.recipe_from == ON_THE_IMAGE:
            recipe = machine.read_json("/etc/kiln/recipe.json")
            if not isinstance(recipe, dict):
                raise operation_failed(
                    f"{image.ami_id} has no readable /etc/kiln/recipe.json, and there is no "
                    "record of its build here: there is nothing to check it against"
                )
            require_components(recipe, image.ami_id)
            draft.record = replace(draft.record, recipe=recipe)
        with progress.stage("checks") as stage:
            stage.waits_for(f"the checks of {machine.instance_id}")
            expected = ami_checks.expectations(
                draft.record.recipe, instance_type, target, own_kernel=bool(own_kernel)
            )
            verdict = ami_checks.run_checks(
                machine,
                expected,
                draft.run.folder,
                stop=stop,
                on_line=stage.line,
                keyword=keyword,
            )
            stage.note = _counts(verdict)
        draft.record = replace(
            draft.record,
            checks=Checks.of(verdict),
            versions=machine.read_json("/etc/kiln/version-info.json"),
        )
    stop.check()
    if keyword:
        draft.record = replace(draft.record, status="unverified" if verdict.passed else "failed")
        return
    # The record gets the verdict only after the AMI itself.
    draft.record = replace(draft.record, status="unverified")
    draft.write()
    mark(
        target,
        image.ami_id,
        TaggedVerdict(verdict.passed, str(draft.record.finished), draft.record.git_commit),
        keys=(VERIFIED, OWN_KERNEL) if own_kernel else (VERIFIED,),
    )
    draft.record = replace(draft.record, status="verified" if verdict.passed else "failed")
    with contextlib.suppress(OSError):  # it is written again at the end
        draft.write()


def mark(
    target: Target, ami_id: str, verdict: TaggedVerdict, keys: Sequence[str] = (VERIFIED,)
) -> None:
    """Tag an AMI with the verdict of its checks: pass or fail, when, by which commit."""
    with aws.explained(f"{ami_id} could not be tagged {VERIFIED}"):
        aws.ec2(target).create_tags(
            Resources=[ami_id], Tags=[{"Key": key, "Value": str(verdict)} for key in keys]
        )


def _counts(verdict: Verdict) -> str:
    return ", ".join(
        f"{verdict.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")
    )
