"""Builds recipes: from a parent AMI to a judged AMI, several in parallel."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kiln.base import needs, overlay, vocabulary
from kiln.base.account import Account, key_elsewhere
from kiln.base.errors import KilnError, operation_failed, refuse_errors
from kiln.base.processes import Stop, on_signals
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cloud import parents, runs, session
from kiln.cloud.instance import ssh_timeout
from kiln.cloud.network import SESSION_MANAGER, make_access
from kiln.cloud.target import Target
from kiln.compat import engine
from kiln.packer import program
from kiln.packer.lock import first_seen
from kiln.packer.program import Packer
from kiln.packer.render import renewal, shown_packer, stale_rows
from kiln.packer.validate import check_scripts
from kiln.pipeline import bake as baking
from kiln.pipeline import plan as planning
from kiln.pipeline import verify
from kiln.pipeline.draft import recorded
from kiln.pipeline.plan import Options, Plan, Rebuilt
from kiln.pipeline.record import Record
from kiln.pipeline.records import bucket_at

_AT_ONCE = 4


@dataclass(frozen=True)
class Outcome:
    """How the builds of `expected` recipes ended; `failures` of those without a record, by name."""

    expected: int
    built: tuple[Record, ...]
    failures: dict[str, KilnError]

    @property
    def succeeded(self) -> bool:
        """Whether every recipe was built and verified, and nothing else of the runs is left."""
        return len(self.built) == self.expected and all(record.succeeded for record in self.built)


def announce(
    recipes: list[Recipe],
    options: Options,
    target: Target,
    say: Callable[[str], None],
    rebuilt: Rebuilt | None = None,
) -> Target:
    """Refuse recipes that cannot work, and say where and on which instance types to build.

    A recipe of a record (`rebuilt`) was judged when it was first built: today's knowledge does not
    refuse it. Returns the target with its account known.
    """
    say(str(target))
    for folder in overlay.overlays():
        say(f"overlay: {overlay.shown_path(folder)}")
    for flag in ("instance_type", "verify_instance_type"):
        if value := getattr(options, flag):
            vocabulary.INSTANCE_TYPE.required(value, f"--{flag.replace('_', '-')}")
    ssh_timeout()
    if rebuilt is None:
        _require_compatible(recipes, options)
    if options.own_kernel:
        for recipe in recipes:
            target.hooks.require_own_kernel(recipe)
        if options.own_kernel.keep and len(recipes) > 1:
            raise KilnError(
                f"--disk keeps the disk of one AMI, and {len(recipes)} rows match",
                hint=f"select one: --name {recipes[0].name}",
            )
    accounts = {recipe.name: options.account(recipe) for recipe in recipes}
    for account in accounts.values():
        _require_region(account, target)
    for line in _settings(accounts):
        say(line)
    if target.bills:
        for recipe in recipes:
            bakes = " or ".join(options.bake_types(recipe))
            kinds = " and ".join(dict.fromkeys([bakes, options.verify_type(recipe)]))
            region = accounts[recipe.name].region or target.region
            say(f"will launch: {kinds} in {region} for {recipe.name}")
        target = target.identified()
        say(f"account: {target.place}")
    return target


def _require_compatible(recipes: list[Recipe], options: Options) -> None:
    """Refuse recipes and options that cannot work, before anything is launched."""
    # A value from the command line has no place in the matrix.
    types = ("instance_type", "verify_instance_type")
    typed = any(getattr(options, name) for name in types) or "instance_types" in options.aws_flags
    chosen = []
    for recipe in recipes:
        bakes, verifies = options.bake_types(recipe), options.verify_type(recipe)
        account = options.account(recipe).changed(instance_types=bakes)
        row = recipe.row.without(*(types if typed else ())).changed(account=account)
        chosen.append(
            recipe.changed(instance_type=bakes[0], verify_instance_type=verifies, row=row)
        )
    refuse_errors(engine.check_matrix(chosen))


def _require_region(account: Account, target: Target) -> None:
    """Refuse a region that is not there, and a key of another one."""
    if account.region:
        target.in_region(account.region)
    # A key of AWS serves in the lab too, in whatever region that says it is.
    region = account.region or (target.region if target.bills else None)
    if elsewhere := key_elsewhere(account.kms_key_id, region):
        raise KilnError(
            f"kms_key_id ({account.origins['kms_key_id']}): the key is in {elsewhere}, and the "
            f"build in {region}",
            hint="name a key of that region, or alias/NAME, of which each region has its own",
        )


def _settings(accounts: Mapping[str, Account]) -> list[str]:
    """The `aws` settings of all rows as lines; those that not every row has name their rows."""
    rows: dict[str, list[str]] = {}
    for name, account in accounts.items():
        # The target's line names the caller's region.
        for line in account.shown(without=("region",) if account.region_of_caller else ()):
            rows.setdefault(line, []).append(name)
    return [
        f"aws: {line}" + (f" for {', '.join(names)}" if len(names) < len(accounts) else "")
        for line, names in rows.items()
    ]


def dry_run(
    recipes: list[Recipe], options: Options, target: Target, rebuilt: Rebuilt | None = None
) -> list[Plan]:
    """What builds of these recipes will do; starts nothing."""
    _require_scripts(recipes)
    return _plans(recipes, options, target, rebuilt)


def _plans(
    recipes: list[Recipe], options: Options, target: Target, rebuilt: Rebuilt | None
) -> list[Plan]:
    find = parents.once()
    return [planning.plan_build(recipe, target, options, rebuilt, find) for recipe in recipes]


def _require_scripts(recipes: list[Recipe]) -> None:
    """Refuse provisioners that bash cannot parse, before anything is launched."""
    refuse_errors(check_scripts(dict.fromkeys(name for r in recipes for name in r.components)))


def build_recipes(
    recipes: list[Recipe],
    options: Options,
    target: Target,
    progress: Progress,
    *,
    install: bool,
    on_failure: Callable[[KilnError], None],
    rebuilt: Rebuilt | None = None,
) -> Outcome:
    """Build these recipes, several in parallel; `on_failure` gets each failure at once.

    `rebuilt`: there is one recipe, and it is baked again from a record's inputs. Raises KilnError
    if nothing could be started, or if a single recipe's build failed.
    """
    stop = Stop()
    built: list[Record] = []
    failures: dict[str, KilnError] = {}

    def failed(error: KilnError, *rows: Recipe) -> None:
        failures.update({row.name: error for row in rows})
        on_failure(error)

    with target.hooks.preparing([recipe.name for recipe in recipes]):
        for number, batch in enumerate(target.hooks.batches(recipes, progress.say)):
            try:
                planned, packer = _set_up(
                    batch, options, target, progress, rebuilt, install=install
                )
            except KilnError as error:
                if number == 0:
                    raise
                failed(error, *batch)
                break
            with on_signals(stop):
                if len(recipes) == 1:
                    built = [build_recipe(planned[0], packer, progress, stop)]
                else:
                    built += _several(planned, packer, stop, failed)
            if stop.is_set():
                break
    return Outcome(len(recipes), tuple(built), failures)


def _set_up(
    recipes: list[Recipe],
    options: Options,
    target: Target,
    progress: Progress,
    rebuilt: Rebuilt | None,
    *,
    install: bool,
) -> tuple[list[Plan], Packer]:
    """Prepare this machine and the target for the recipes, and plan their builds."""
    needs.ensure("ssh", install=install, say=progress.say)
    packer = program.find_packer(in_aws=target.bills, install=install, say=progress.say)
    own_kernel = options.own_kernel is not None
    target.hooks.prepare(recipes, progress, install=install, own_kernel=own_kernel)
    planned = _plans(recipes, options, target, rebuilt)
    if any(plan.account.ssh_interface == SESSION_MANAGER for plan in planned):
        session.require_plugin()
    if rebuilt is None:
        say_if_stale(planned, progress)
    with progress.stage("parse the scripts"):
        _require_scripts(recipes)
    for name in sorted({plan.account.records_bucket or "" for plan in planned} - {""}):
        if bucket := bucket_at(name, target):
            bucket.runs("none")  # a bucket that refuses is better known now than after a bake
    runs.clean_dead_runs(target, progress)
    return planned, packer


def say_if_stale(planned: list[Plan], progress: Progress) -> None:
    """Report that the committed HCL is not what will be baked."""
    if stale_rows([plan.rendered for plan in planned]):
        progress.say(
            f"{shown_packer()}/ is stale: this build bakes what the matrix says now; {renewal()} "
            f"brings {shown_packer()}/ up to date"
        )


def _several(
    planned: list[Plan],
    packer: Packer,
    stop: Stop,
    failed: Callable[[KilnError, Recipe], None],
) -> list[Record]:
    """Build in parallel; a failure does not stop the other builds."""
    with ThreadPoolExecutor(max_workers=min(len(planned), _AT_ONCE)) as pool:
        pending = [
            pool.submit(build_recipe, plan, packer, Progress(label=plan.recipe.name), stop)
            for plan in planned
        ]
        ended = [
            _ended(plan, future, failed) for plan, future in zip(planned, pending, strict=True)
        ]
    return [record for record in ended if record]


def _ended(
    plan: Plan, future: Future[Record], failed: Callable[[KilnError, Recipe], None]
) -> Record | None:
    """Wait for one of several builds; report its failure instead of raising it."""
    try:
        return future.result()
    except KilnError as error:
        failed(error, plan.recipe)
    except Exception as error:  # a mistake of ours must not cost the other rows their outcome
        traceback.print_exception(error)
        name = type(error).__name__
        failed(operation_failed(f"{plan.recipe.name}: {name}: {error}"), plan.recipe)
    return None


def build_recipe(plan: Plan, packer: Packer, progress: Progress, stop: Stop) -> Record:
    """Build and verify one recipe: access, bake, boot, checks, record."""
    recipe, target = plan.recipe, plan.target
    if stop.is_set():
        raise operation_failed(f"{recipe.name}: interrupted", hint="it had not begun")
    stop = stop.of_run()
    bucket = bucket_at(plan.account.records_bucket, target)
    # An AMI without a verdict is removed; one whose checks failed is kept for inspection.
    remove = not plan.options.keep
    first = _first_facts(plan, packer)
    with recorded(
        recipe.name, first, target, progress, stop, bucket, delete_ami_on_failure=remove
    ) as draft:
        with progress.stage("key pair, security group"):
            access = make_access(draft.run, target, plan.account)
        with progress.stage("packer build") as stage:
            baked = baking.bake(plan, packer, draft, access, stage, stop)
            stage.note = baked.ami_id
        draft.note(
            ami_id=baked.ami_id,
            amis={target.region: baked.ami_id},
            instance_type=baked.instance_type,
            component_seconds=baked.component_seconds,
        )
        baking.finish_image(plan, baked.ami_id)
        stop.check()
        verify.judge(
            draft,
            access,
            baked.ami_id,
            user=recipe.distro.ssh_user,
            account=plan.account,
            own_kernel=plan.options.own_kernel,
        )
    if target.bills and draft.record.versions:
        new = first_seen(draft.record.versions["downloads"])
        if new:
            progress.say(
                f"{len(new)} downloads have unconfirmed hashes; record them with "
                f"./invoke lock --from {draft.run.id}"
            )
    return draft.record


def _first_facts(plan: Plan, packer: Packer) -> Record:
    """What a record says before its run."""
    return Record(
        run_id="",
        kind="build",
        status="failed",
        recipe=plan.recipe,
        recipe_from=plan.recipe_from,
        recipe_digest=plan.recipe_digest,
        input_digest=plan.input_digest,
        target=plan.target.kind,
        image_note=plan.target.image_note,
        vendors=plan.target.vendors,
        emulated=plan.target.hooks.emulates(plan.recipe.arch),
        region=plan.target.region,
        source_ami=plan.source,
        instance_type=plan.instance_type,
        verify_instance_type=plan.verify_instance_type,
        packer=str(packer),
        git_commit=runs.git_commit(),
        started="",
        folder="",
    )
