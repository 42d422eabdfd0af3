"""`verify`: boots an existing AMI and checks it against the recipe that it was baked from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kiln.base import needs, vocabulary
from kiln.base.account import Account
from kiln.base.errors import operation_failed
from kiln.base.progress import Progress
from kiln.base.stopping import Stop, on_signals
from kiln.base.tags import INPUT_DIGEST, RECIPE, RECIPE_DIGEST, SOURCE_AMI
from kiln.base.times import now
from kiln.cloud import runs, watch
from kiln.cloud.access import make_access
from kiln.cloud.images import Image, require_image
from kiln.cloud.machine import ssh_timeout
from kiln.cloud.runs import Run
from kiln.cloud.target import OwnKernel, ParentAmi, Target
from kiln.matrix import flags, load
from kiln.matrix.flags import NOTHING, overridden, records_bucket
from kiln.pipeline import ami_checks, shared_records, verdict
from kiln.pipeline.baked_recipe import Baked, baked, require_components
from kiln.pipeline.build_row import Built
from kiln.pipeline.dead_runs import clean_dead_runs
from kiln.pipeline.record import Record
from kiln.pipeline.record_draft import Draft, cleaned_up
from kiln.pipeline.shared_records import Shelf, shelf_of


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
) -> Built:
    """Boot the AMI, with its own kernel if asked to, run its checks, tag it; with `keyword` only
    those of that name, without a verdict.

    Raises KilnError: exit status 2 for an AMI that AMI Kiln did not build, 1 if an operation
    failed.
    """
    flags.ami(ami_id)
    flags.instance_type("instance-type", instance_type)
    ssh_timeout()
    ami_checks.require_match(keyword)
    progress.say(str(target))
    target.check_host()
    with target.preparing([ami_id]):
        needs.ensure("ssh", *target.host_packages([]), install=install, say=progress.say)
        target = target.prepare([], progress.say)
        image = require_image(target, ami_id)
        shelf = _shelf(image.tags.get(RECIPE, ""), aws_flags, target)
        if shelf:
            shared_records.bring_row(shelf, image.tags[RECIPE], progress.say)
        baked_recipe = baked(ami_id, image.tags, load.load_recipes())
        progress.say(f"checked against: {baked_recipe.recipe_from}")
        require_components(baked_recipe.recipe or {}, ami_id)
        account = overridden(load.load_account(baked_recipe.name), aws_flags, baked_recipe.arch)
        for line in account.shown():
            progress.say(f"aws: {line}")
        if own_kernel:
            target.check_own_kernel(baked_recipe.recipe or {})
        groups = (
            *target.host_packages([baked_recipe.arch]),
            *(["own_kernel"] if own_kernel else []),
        )
        needs.ensure(*groups, install=install, say=progress.say)
        kind = instance_type or baked_recipe.verify_instance_type
        if target.bills:
            progress.say(f"will launch: {kind} in {target.region} for {ami_id}")
            target = target.identified()
        clean_dead_runs(target, progress)
        stop = Stop()
        with on_signals(stop):
            return verify_ami(
                image,
                baked_recipe,
                kind,
                target,
                progress,
                stop,
                own_kernel,
                account,
                shelf,
                keyword,
            )


def _shelf(row: str, aws_flags: Mapping[str, str], target: Target) -> Shelf | None:
    """Where records of a row are shared; None if nowhere, or if `row` is not a row's name."""
    if not vocabulary.RECIPE_NAME.fits(row):
        return None
    return shelf_of(records_bucket(load.load_account(row), aws_flags), target)


def smoke_test(*, install: bool) -> Callable[[Target, str], None]:
    """A function that boots an AMI of a target and checks it as `verify_by_id` does, and raises
    KilnError (exit status 1) unless it is good."""

    def boot(target: Target, ami_id: str) -> None:
        judged = verify_by_id(ami_id, None, target=target, progress=Progress(), install=install)
        if not judged.good:
            raise operation_failed(
                f"{ami_id} in {target.region} failed its checks, so no channel moved",
                hint=f"see {judged.record.folder}/report.html",
            )

    return boot


def verify_ami(
    image: Image,
    baked_recipe: Baked,
    instance_type: str,
    target: Target,
    progress: Progress,
    stop: Stop | None = None,
    own_kernel: OwnKernel | None = None,
    account: Account | None = None,
    shelf: Shelf | None = None,
    keyword: str | None = None,
) -> Built:
    """Boot an existing AMI, run the checks of its recipe, and tag it with the verdict.

    Raises KilnError (exit status 1), after the clean-up, if an operation failed or `stop` was set.
    """
    account = account or Account()
    stop = (stop or Stop()).of_run()
    with runs.started(baked_recipe.name, target) as run, watch.watching(run.id, target, stop):
        draft = Draft(
            _first_facts(image, baked_recipe, instance_type, target, run),
            run,
            target,
            progress,
            stop,
            shelf,
        )
        with cleaned_up(draft, half_made=False):
            with progress.stage("key pair, security group"):
                access = make_access(run, target, account)
            verdict.judge(
                draft,
                access,
                image,
                user=baked_recipe.ssh_user,
                stop=stop,
                account=account,
                own_kernel=own_kernel,
                keyword=keyword,
            )
        draft.end()
    return Built(draft.record)


def _first_facts(
    image: Image, baked_recipe: Baked, instance_type: str, target: Target, run: Run
) -> Record:
    parent = image.tags.get(SOURCE_AMI)
    return Record(
        run_id=run.id,
        kind="verify",
        status="unverified",
        recipe=baked_recipe.recipe or {"name": baked_recipe.name, "arch": baked_recipe.arch},
        recipe_from=baked_recipe.recipe_from,
        recipe_digest=image.tags.get(RECIPE_DIGEST),
        input_digest=image.tags.get(INPUT_DIGEST),
        target=target.kind,
        image_note=target.image_note,
        emulated=target.emulates(baked_recipe.arch),
        region=target.region,
        ami_id=image.ami_id,
        source_ami=ParentAmi(parent, "", "", f"tag {SOURCE_AMI}") if parent else None,
        verify_instance_type=instance_type,
        git_commit=runs.git_commit(),
        started=now(),
        folder=str(run.folder),
    )
