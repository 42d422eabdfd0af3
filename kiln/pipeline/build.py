"""Builds recipes: from a parent AMI to a judged AMI, several in parallel."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kiln.base import needs
from kiln.base.errors import KilnError, operation_failed
from kiln.base.processes import Stop, on_signals
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cloud import runs, session
from kiln.cloud.instance import ssh_timeout
from kiln.cloud.network import SESSION_MANAGER, make_access
from kiln.cloud.target import Target
from kiln.packer import program
from kiln.packer.lock import first_seen
from kiln.packer.program import Packer
from kiln.packer.render import renewal, shown_packer, stale_rows
from kiln.pipeline import bake as baking
from kiln.pipeline import verify
from kiln.pipeline.draft import recorded
from kiln.pipeline.plan import Options, Plan, plan_builds, require_scripts
from kiln.pipeline.record import Record
from kiln.pipeline.records import bucket_at

_AT_ONCE = 4


@dataclass(frozen=True)
class Outcome:
    """Results of the builds of `expected` recipes; `failures` of those without a record, by
    name."""

    expected: int
    built: tuple[Record, ...]
    failures: dict[str, KilnError]

    @property
    def succeeded(self) -> bool:
        """True if every recipe was built and verified, and nothing else of the runs is left."""
        return len(self.built) == self.expected and all(record.succeeded for record in self.built)


def build_recipes(
    recipes: Sequence[Recipe],
    options: Options,
    target: Target,
    progress: Progress,
    *,
    install: bool,
    on_failure: Callable[[KilnError], None],
    rebuilt: Record | None = None,
) -> Outcome:
    """Build these recipes, several in parallel; `on_failure` gets each failure at once.

    `rebuilt`: there is one recipe, and it is baked again from a record's inputs. A failure of a
    single recipe is raised.
    """
    stop = Stop()
    failures: dict[str, KilnError] = {}

    def failed(recipe: Recipe, error: KilnError) -> None:
        failures[recipe.name] = error
        on_failure(error)

    ssh_timeout()
    needs.ensure("ssh", install=install, say=progress.say)
    packer = program.find_packer(in_aws=target.bills, install=install, say=progress.say)
    what = recipes[0].name + (f" and {len(recipes) - 1} more" if len(recipes) > 1 else "")
    with target.hooks.prepared(what, recipes, progress, own_kernel=options.own_kernel) as ordered:
        plans = _plan(ordered, options, target, progress, rebuilt)
        with on_signals(stop):
            if len(plans) == 1:
                built = [build_recipe(plans[0], packer, progress, stop)]
            else:
                built = _several(plans, packer, stop, failed)
    return Outcome(len(recipes), tuple(built), failures)


def _plan(
    recipes: Sequence[Recipe],
    options: Options,
    target: Target,
    progress: Progress,
    rebuilt: Record | None,
) -> list[Plan]:
    """Plan the builds, once all that they need is there."""
    with progress.stage("parse the scripts"):
        require_scripts(recipes)
    plans = plan_builds(recipes, options, target, rebuilt)
    if any(plan.account.ssh_interface == SESSION_MANAGER for plan in plans):
        session.require_plugin()
    if rebuilt is None:
        say_if_stale(plans, progress)
    for name in sorted({plan.account.records_bucket or "" for plan in plans} - {""}):
        if bucket := bucket_at(name, target):
            bucket.runs("none")  # a bucket that refuses is better known now than after a bake
    runs.clean_dead_runs(target, progress)
    return plans


def say_if_stale(planned: list[Plan], progress: Progress) -> None:
    """Report that the committed HCL is not what will be baked."""
    if stale_rows([plan.rendered for plan in planned]):
        progress.say(
            f"{shown_packer()}/ is stale: this build bakes what the matrix says now; {renewal()} "
            f"brings {shown_packer()}/ up to date"
        )


def _several(
    plans: Sequence[Plan],
    packer: Packer,
    stop: Stop,
    failed: Callable[[Recipe, KilnError], None],
) -> list[Record]:
    """Build in parallel; a failure is reported and does not stop the other builds."""

    def build_one(plan: Plan) -> Record | None:
        try:
            return build_recipe(plan, packer, Progress(label=plan.recipe.name), stop)
        except KilnError as error:
            failed(plan.recipe, error)
        except Exception as error:  # a mistake of ours must not cost the other rows their outcome
            traceback.print_exception(error)
            message = f"{plan.recipe.name}: {type(error).__name__}: {error}"
            failed(plan.recipe, operation_failed(message))
        return None

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return [record for record in pool.map(build_one, plans) if record]


def build_recipe(plan: Plan, packer: Packer, progress: Progress, stop: Stop) -> Record:
    """Build and verify one recipe: access, bake, boot, checks, record."""
    recipe, target = plan.recipe, plan.target
    if stop.is_set():
        raise operation_failed(f"{recipe.name}: interrupted", hint="it had not begun")
    stop = stop.for_run()
    bucket = bucket_at(plan.account.records_bucket, target)
    # An AMI without a verdict is removed; one whose checks failed is kept for inspection.
    with recorded(
        recipe.name,
        recipe,
        target,
        progress,
        stop,
        bucket,
        delete_ami_on_failure=not plan.options.keep,
        kind="build",
        status="failed",
        recipe_from=plan.recipe_from,
        recipe_digest=plan.recipe_digest,
        input_digest=plan.input_digest,
        source_ami=plan.source,
        instance_type=plan.instance_types[0],
        verify_instance_type=plan.verify_instance_type,
        packer=str(packer),
    ) as draft:
        with progress.stage("key pair, security group"):
            access = make_access(
                draft.run, target, plan.account, efa=verify.attaches_efa(draft.record)
            )
        with progress.stage("packer build") as stage:
            stage.note = ami_id = baking.bake(plan, packer, draft, access, stage, stop)
        baking.finish_image(plan, ami_id)
        stop.check()
        verify.judge(draft, access, plan.account, own_kernel=plan.options.own_kernel)
    if target.bills and draft.record.versions:
        new = first_seen(draft.record.versions["downloads"])
        if new:
            progress.say(
                f"{len(new)} downloads have unconfirmed hashes; record them with "
                f"./invoke lock --from {draft.run.id}"
            )
    return draft.record
