"""Decides whether an AMI is verified: boots a fresh instance, runs the checks, tags the AMI.

`judge` does it for a build as for `verify --ami`, which first finds the recipe that the AMI was
baked from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pydantic import ValidationError

from kiln import components
from kiln.base import needs, vocabulary
from kiln.base.account import Account
from kiln.base.errors import KilnError, operation_failed
from kiln.base.processes import Stop, on_signals
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.base.tags import (
    ARCH,
    DISTRO,
    INPUT_DIGEST,
    OWN_KERNEL,
    RECIPE,
    RECIPE_DIGEST,
    SOURCE_AMI,
    VERIFIED,
    TaggedVerdict,
)
from kiln.cloud import aws, runs
from kiln.cloud.images import Image, require_image
from kiln.cloud.instance import Boot, Machine, booted, ssh_timeout
from kiln.cloud.network import Access, make_access
from kiln.cloud.target import OwnKernel, ParentAmi, Target
from kiln.matrix import load
from kiln.matrix.flags import NOTHING, overridden, records_bucket
from kiln.packer.render import recipe_digest
from kiln.pipeline import checks, records
from kiln.pipeline.draft import Draft, recorded
from kiln.pipeline.record import Record
from kiln.pipeline.records import RecordsBucket, bucket_at

ON_THE_IMAGE = "/etc/kiln/recipe.json on the image"


def judge(
    draft: Draft,
    access: Access,
    ami_id: str,
    *,
    user: str,
    account: Account,
    own_kernel: OwnKernel | None = None,
    keyword: str | None = None,
) -> None:
    """Boot the AMI, run its checks, tag it; notes `checks`, `versions`, `status` in the draft.

    With `keyword`, pytest's -k, only a part is checked; that is not a verdict, and the AMI's tag
    stays as it is. With `own_kernel` the instance boots the AMI's own kernel, whatever the target's
    other instances do.
    """
    progress, target, stop = draft.progress, draft.target, draft.stop
    boot = Boot(
        ami_id,
        str(draft.record.verify_instance_type),
        user,
        draft.run.id,
        draft.run.folder,
        access,
        account,
        launched=draft.launched.append,
        tried=draft.tried,
    )
    with ExitStack() as until_checked:
        if own_kernel:
            with progress.stage("disk of the AMI") as stage:
                disk = target.hooks.own_kernel(ami_id, draft.record.recipe, own_kernel)
                own = until_checked.enter_context(disk)
                stage.note = own.how
            boot = replace(boot, tags=own.tags)
            draft.note(own_kernel=own.how)
        with progress.stage("boot the AMI") as stage:
            machine = until_checked.enter_context(booted(boot, target, stage, progress.say, stop))
            stage.note = f"{machine.instance_id} ({boot.instance_type})"
        if draft.recipe_unread:
            draft.note(recipe=recipe_on(machine, ami_id))
            draft.recipe_unread = False
        with progress.stage("checks") as stage:
            stage.waits_for(f"the checks of {machine.instance_id}")
            expected = checks.expectations(
                draft.record.recipe,
                boot.instance_type,
                target.kind,
                own_kernel=own_kernel is not None,
                reboot=keyword is None,
            )
            done = checks.run_checks(
                machine,
                expected,
                draft.run.folder,
                stop=stop,
                on_line=stage.line,
                keyword=keyword,
            )
            stage.note = str(done)
        draft.note(checks=done, versions=machine.read_json("/etc/kiln/version-info.json"))
    stop.check()
    if keyword:
        draft.note(status="unverified" if done.succeeded else "failed")
        return
    # The record gets the verdict only after the AMI itself.
    draft.note(status="unverified")
    draft.write()
    tag_verdict(
        target,
        ami_id,
        TaggedVerdict(done.succeeded, str(draft.record.finished), draft.record.git_commit),
        keys=(VERIFIED, OWN_KERNEL) if own_kernel else (VERIFIED,),
    )
    draft.note(status="verified" if done.succeeded else "failed")
    with contextlib.suppress(OSError):  # it is written again at the end
        draft.write()


def tag_verdict(
    target: Target, ami_id: str, verdict: TaggedVerdict, keys: Sequence[str] = (VERIFIED,)
) -> None:
    """Tag an AMI with the verdict of its checks: pass or fail, when, by which commit."""
    with aws.explained(f"{ami_id} could not be tagged {VERIFIED}"):
        aws.ec2(target).create_tags(
            Resources=[ami_id], Tags=[{"Key": key, "Value": str(verdict)} for key in keys]
        )


def recipe_on(machine: Machine, name: str) -> Recipe:
    """The recipe in a machine's /etc/kiln/recipe.json; `name` is the machine's, for messages."""
    data = machine.read_json("/etc/kiln/recipe.json")
    if not isinstance(data, dict):
        raise operation_failed(
            f"{name} has no readable /etc/kiln/recipe.json: only images that AMI Kiln baked have it"
        )
    file = f"/etc/kiln/recipe.json on {name}"
    try:
        recipe = Recipe.model_validate({**data, "row": {"file": file, "line": 1, "index": 0}})
    except ValidationError as error:
        first = error.errors()[0]
        raise operation_failed(
            f"{file}: `{'.'.join(map(str, first['loc']))}`: {first['msg']}",
            hint="verify it in the checkout that built it",
        ) from None
    require_components(recipe, name)
    return recipe


def require_components(recipe: Recipe, image: str) -> None:
    """Refuse an image with components that this checkout does not have: what checks them is not
    here either, and the rest would pass without it."""
    own = {component.name for component in components.everything()}
    unknown = [name for name in recipe.components if name not in own]
    if unknown:
        raise KilnError(
            f"{image} has {', '.join(map(vocabulary.shown, unknown))}: nothing here checks that",
            hint="KILN_OVERLAY=DIR names the overlay with it; else verify it in the checkout that "
            "built it",
        )


@dataclass(frozen=True)
class Baked:
    """The recipe that an AMI is checked against, and the one whose arch, user and instance type it
    is booted with.

    `recipe` None means that it is to be read from the image (`ON_THE_IMAGE`), because neither a
    record nor a row of the matrix has it.
    """

    name: str
    booted_as: Recipe
    recipe: Recipe | None
    recipe_from: str


def baked(ami_id: str, tags: Mapping[str, str], recipes: Sequence[Recipe]) -> Baked:
    """What its tags, the records and the matrix say about an AMI before it is booted.

    A row of the same name counts only if it still has the digest of the AMI's tag: a row that has
    changed since describes another AMI.
    """
    name = tags.get(RECIPE)
    if not name:
        raise KilnError(
            f"{ami_id} has no tag {RECIPE}",
            hint="only AMIs that AMI Kiln built can be verified; see ./invoke list",
        )
    vocabulary.RECIPE_NAME.required(name, f"{ami_id}: its tag {RECIPE}")
    if built := records.of_ami(ami_id):
        return Baked(name, built.recipe, built.recipe, f"the record of run {built.run_id}")
    row = next((recipe for recipe in recipes if recipe.name == name), None)
    if row and recipe_digest(row) == tags.get(RECIPE_DIGEST):
        return Baked(name, row, row, f"{row.row.file}, by the tagged digest")
    return Baked(name, row or _same_kind(ami_id, tags, recipes), None, ON_THE_IMAGE)


def _same_kind(ami_id: str, tags: Mapping[str, str], recipes: Sequence[Recipe]) -> Recipe:
    """A row of the AMI's distribution and arch, for its user name and instance type."""
    distro, arch = tags.get(DISTRO), tags.get(ARCH)
    for recipe in recipes:
        if (recipe.distro.id, recipe.arch) == (distro, arch):
            return recipe
    raise KilnError(
        f"{ami_id} is tagged {DISTRO}={distro}, {ARCH}={arch}: the matrix has no row of that "
        "distribution and arch, so how to boot it is unknown",
        hint="add a row, or verify it in the checkout that built it",
    )


def verify_by_id(
    ami_id: str,
    instance_type: str | None,
    *,
    target: Target,
    progress: Progress,
    install: bool,
    own_kernel: OwnKernel | None = None,
    aws_flags: Mapping[str, str] = NOTHING,
    keyword: str | None = None,
) -> Record:
    """Boot the AMI, with its own kernel if asked to, run its checks, tag it; with `keyword` only
    those of that name, without a verdict."""
    vocabulary.AMI_ID.required(ami_id, "--ami")
    if instance_type:
        vocabulary.INSTANCE_TYPE.required(instance_type, "--instance-type")
    ssh_timeout()
    checks.require_match(keyword)
    progress.say(str(target))
    with target.hooks.in_use(ami_id):
        needs.ensure("ssh", install=install, say=progress.say)
        target.hooks.prepare(
            [], progress, install=install, own_kernel=own_kernel is not None, ami_id=ami_id
        )
        image = require_image(target, ami_id)
        bucket = _bucket(image.tags.get(RECIPE, ""), aws_flags, target)
        if bucket:
            bucket.fetch_row(image.tags[RECIPE], progress.say)
        known = baked(ami_id, image.tags, load.load_recipes())
        progress.say(f"checked against: {known.recipe_from}")
        if known.recipe:
            require_components(known.recipe, ami_id)
        elif own_kernel:
            raise KilnError(
                f"{ami_id} cannot boot its own kernel: neither a record of its build nor a row of "
                "the matrix says what is on it"
            )
        account = overridden(load.load_account(known.name), aws_flags, known.booted_as.arch)
        for line in account.shown():
            progress.say(f"aws: {line}")
        kind = instance_type or known.booted_as.verify_instance_type
        if target.bills:
            progress.say(f"will launch: {kind} in {target.region} for {ami_id}")
            target = target.identified()
        runs.clean_dead_runs(target, progress)
        stop = Stop()
        with on_signals(stop):
            first = _first_facts(image, known, kind, target)
            with recorded(
                known.name,
                first,
                target,
                progress,
                stop.of_run(),
                bucket,
                delete_ami_on_failure=False,
            ) as draft:
                draft.recipe_unread = known.recipe is None
                with progress.stage("key pair, security group"):
                    access = make_access(draft.run, target, account)
                judge(
                    draft,
                    access,
                    ami_id,
                    user=known.booted_as.distro.ssh_user,
                    account=account,
                    own_kernel=own_kernel,
                    keyword=keyword,
                )
            return draft.record


def _bucket(row: str, aws_flags: Mapping[str, str], target: Target) -> RecordsBucket | None:
    """Where records of a row are shared; None if nowhere, or if `row` is not a row's name."""
    if not vocabulary.RECIPE_NAME.fits(row):
        return None
    return bucket_at(records_bucket(load.load_account(row), aws_flags), target)


def _first_facts(image: Image, known: Baked, instance_type: str, target: Target) -> Record:
    """What a record says before its run."""
    parent = image.tags.get(SOURCE_AMI)
    return Record(
        run_id="",
        kind="verify",
        status="unverified",
        recipe=known.recipe or known.booted_as,
        recipe_from=known.recipe_from,
        recipe_digest=image.tags.get(RECIPE_DIGEST),
        input_digest=image.tags.get(INPUT_DIGEST),
        **{**target.record_fields(known.booted_as.arch), "vendors": None},
        ami_id=image.ami_id,
        source_ami=ParentAmi(parent, "", "", f"tag {SOURCE_AMI}") if parent else None,
        verify_instance_type=instance_type,
        git_commit=runs.git_commit(),
        started="",
        folder="",
    )


def smoke_test(*, install: bool) -> Callable[[Target, str], None]:
    """A function that boots an AMI of a target and checks it as `verify_by_id` does, and fails
    unless it is verified."""

    def boot(target: Target, ami_id: str) -> None:
        judged = verify_by_id(ami_id, None, target=target, progress=Progress(), install=install)
        if not judged.succeeded:
            raise operation_failed(
                f"{ami_id} in {target.region} failed its checks, so no channel moved",
                hint=f"see {judged.folder}/report.html",
            )

    return boot
