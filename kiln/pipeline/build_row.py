"""One recipe from its parent AMI to a judged AMI: access → bake → boot → checks → record."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kiln.base.errors import operation_failed, refuse_errors
from kiln.base.progress import Progress
from kiln.base.stopping import Stop
from kiln.base.times import now
from kiln.cloud import runs, watch
from kiln.cloud.access import make_access
from kiln.cloud.images import require_image
from kiln.compat.unconfirmed import unconfirmed_of_row
from kiln.packer.lock import first_seen
from kiln.packer.program import Packer
from kiln.packer.validate import check_scripts
from kiln.pipeline import bake, verdict
from kiln.pipeline.plan import Plan
from kiln.pipeline.record import Record
from kiln.pipeline.record_draft import Draft, cleaned_up
from kiln.pipeline.shared_records import shelf_of


@dataclass(frozen=True)
class Built:
    """A finished run, by its record, and how many unconfirmed facts its recipe rests on."""

    record: Record
    unconfirmed: int = 0

    @property
    def good(self) -> bool:
        """Did the AMI pass its checks, and was everything else of the run removed?"""
        return self.record.status == "verified" and not self.record.left


def prepare(plan: Plan) -> None:
    """Parse the scripts of the bake before anything is launched.

    Raises KilnError (exit status 2) naming file and line.
    """
    refuse_errors(check_scripts(plan.recipe.components))


def build_recipe(plan: Plan, packer: Packer, progress: Progress, stop: Stop | None = None) -> Built:
    """Build and verify one recipe that `prepare` has checked.

    Raises KilnError (exit status 1), after the clean-up, if an operation failed or `stop` was set.
    """
    stop = stop or Stop()
    recipe, target = plan.recipe, plan.target
    if stop.is_set():
        raise operation_failed(f"{recipe.name}: interrupted", hint="it had not begun")
    stop = stop.of_run()
    shelf = shelf_of(plan.account.records_bucket, target)
    first = _first_facts(plan, packer)
    with runs.started(recipe.name, target) as run, watch.watching(run.id, target, stop):
        first = replace(first, run_id=run.id, folder=str(run.folder), started=now())
        draft = Draft(first, run, target, progress, stop, shelf)
        # An AMI without a verdict is removed; one whose checks failed is kept for inspection.
        with cleaned_up(draft, half_made=not plan.options.keep):
            with progress.stage("key pair, security group"):
                access = make_access(run, target, plan.account)
            with progress.stage("packer build") as stage:
                baked = bake.bake(plan, packer, draft, access, stage, stop)
                ami_id = stage.note = baked.ami_id
            draft.record = replace(
                draft.record,
                ami_id=ami_id,
                amis={target.region: ami_id},
                packer=str(packer),
                instance_type=baked.instance_type,
                component_seconds=baked.component_seconds,
            )
            bake.finish_image(plan, ami_id)
            stop.check()
            verdict.judge(
                draft,
                access,
                require_image(target, ami_id),
                user=recipe.distro.ssh_user,
                stop=stop,
                account=plan.account,
                own_kernel=plan.options.own_kernel,
            )
        draft.end()
    if target.bills and draft.record.versions:
        new = first_seen(draft.record.versions["downloads"])
        if new:
            progress.say(
                f"{len(new)} downloads have unconfirmed hashes; record them with "
                f"./invoke lock --from {run.id}"
            )
    return Built(draft.record, len(unconfirmed_of_row(recipe)))


def _first_facts(plan: Plan, packer: Packer) -> Record:
    """What a record says from the beginning; its run is none yet."""
    return Record(
        run_id="",
        kind="build",
        status="failed",
        recipe=plan.recipe.as_json(),
        recipe_from=plan.recipe_from,
        recipe_digest=plan.recipe_digest,
        input_digest=plan.input_digest,
        target=plan.target.kind,
        image_note=plan.target.image_note,
        vendors=plan.target.vendors,
        emulated=plan.target.emulates(plan.recipe.arch),
        region=plan.target.region,
        source_ami=plan.source,
        instance_type=plan.instance_type,
        verify_instance_type=plan.verify_instance_type,
        packer=str(packer),
        git_commit=runs.git_commit(),
        started=now(),
        folder="",
    )
