"""Builds recipes: refuses invalid ones, prepares, bakes several in parallel."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kiln.base import needs, overlay
from kiln.base.account import Account, key_elsewhere, variables
from kiln.base.errors import KilnError, operation_failed, refuse_errors
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.base.stopping import Stop, on_signals
from kiln.cloud import parents, session
from kiln.cloud.machine import ssh_timeout
from kiln.cloud.network import SESSION_MANAGER
from kiln.cloud.target import Target
from kiln.compat import engine
from kiln.matrix import flags
from kiln.matrix.flags import overridden
from kiln.matrix.load import no_such_component
from kiln.packer import program
from kiln.packer.scripts import check_scripts
from kiln.packer.staleness import renewal, shown_packer, stale_files
from kiln.pipeline import build_row
from kiln.pipeline import plan as planning
from kiln.pipeline.build_row import Built
from kiln.pipeline.dead_runs import clean_dead_runs
from kiln.pipeline.plan import Options, Plan, Rebuilt
from kiln.pipeline.shared_records import kept_runs, shelf_of

_AT_ONCE = 4


@dataclass(frozen=True)
class Outcome:
    """How the builds of `expected` recipes ended; `failures` of those without a record, by name."""

    expected: int
    built: tuple[Built, ...]
    failures: dict[str, KilnError]

    @property
    def good(self) -> bool:
        """Every recipe was built and verified, and nothing else of the runs is left."""
        return len(self.built) == self.expected and all(build.good for build in self.built)


def announce(
    recipes: list[Recipe],
    options: Options,
    target: Target,
    say: Callable[[str], None],
    rebuilt: Rebuilt | None = None,
) -> Target:
    """Refuse recipes that cannot work, and say where and on which instance types to build.

    A recipe of a record (`rebuilt`) was judged when it was first built: today's knowledge does not
    refuse it.
    Returns the target with its account known. Raises KilnError: exit status 2 for recipes and
    options that cannot work, 1 if AWS does not accept the credentials.
    """
    say(str(target))
    for folder in overlay.overlays():
        say(f"overlay: {overlay.shown_path(folder)}")
    _check_flags(options)
    if rebuilt is None:
        _compatible(recipes, options)
    if options.own_kernel:
        for recipe in recipes:
            target.check_own_kernel(recipe.as_json())
        if options.own_kernel.keep and len(recipes) > 1:
            raise KilnError(
                f"--disk keeps the disk of one AMI, and {len(recipes)} rows match",
                hint=f"select one: --name {recipes[0].name}",
            )
    accounts = {r.name: overridden(r.row.account, options.aws_flags, r.arch) for r in recipes}
    _check_limits(recipes, accounts)
    for account in accounts.values():
        _check_region(account, target)
    for line in _settings(accounts):
        say(line)
    if target.bills:
        for recipe in recipes:
            account = accounts[recipe.name]
            bakes = " or ".join(planning.types_in_order(recipe, account, options))
            checks = options.verify_instance_type or recipe.verify_instance_type
            kinds = " and ".join(dict.fromkeys([bakes, checks]))
            say(f"will launch: {kinds} in {account.region or target.region} for {recipe.name}")
        target = target.identified()
        say(f"account: {target.place}")
    return target


def _check_limits(recipes: list[Recipe], accounts: Mapping[str, Account]) -> None:
    """Refuse a typed time limit for a component that no chosen row has."""
    typed = {"--time-limits", *variables("time_limits")}
    for name in {name: None for account in accounts.values() for name in account.time_limits}:
        origins = {account.origins.get(f"time_limits.{name}") for account in accounts.values()}
        if origins & typed and (why := no_such_component(name, recipes)):
            raise KilnError(f"{', '.join(map(str, origins & typed))}: {why}")


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


def plans(
    recipes: list[Recipe], options: Options, target: Target, rebuilt: Rebuilt | None = None
) -> list[Plan]:
    """What builds of these recipes will do; starts nothing. Raises what `plan.plan` raises."""
    find = parents.once()
    return [planning.plan_build(recipe, target, options, rebuilt, find) for recipe in recipes]


def dry_run(
    recipes: list[Recipe], options: Options, target: Target, rebuilt: Rebuilt | None = None
) -> list[Plan]:
    """As `plans`; refuses scripts that a build would refuse, too (KilnError, exit status 2)."""
    refuse_errors(check_scripts(dict.fromkeys(name for r in recipes for name in r.components)))
    return plans(recipes, options, target, rebuilt)


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

    `rebuilt`: there is one recipe, and it is baked again from a record's inputs.

    Raises KilnError if nothing could be started, or if a single recipe's build failed.
    """
    stop = Stop()
    built: list[Built] = []
    failures: dict[str, KilnError] = {}

    def failed(error: KilnError, *rows: Recipe) -> None:
        failures.update({row.name: error for row in rows})
        on_failure(error)

    target.check_host()
    with target.preparing([recipe.name for recipe in recipes]):
        for turn, together in enumerate(in_turns(recipes, target, progress)):
            try:
                planned, packer = _set_up(
                    together, options, target, progress, rebuilt, install=install
                )
            except KilnError as error:
                if turn == 0:
                    raise
                failed(error, *together)
                break
            with on_signals(stop):
                if len(recipes) == 1:
                    built = [build_row.build_recipe(planned[0], packer, progress, stop)]
                else:
                    built += _several(planned, packer, stop, failed)
            if stop.is_set():
                break
    return Outcome(len(recipes), tuple(built), failures)


def _ready(
    recipes: list[Recipe],
    target: Target,
    progress: Progress,
    *,
    install: bool,
    own_kernel: bool,
) -> tuple[program.Packer, Target]:
    """Install what is missing here, and let the target prepare what the recipes need."""
    groups = ("packer", "ssh", *target.host_packages([recipe.arch for recipe in recipes]))
    if own_kernel:
        groups += ("own_kernel",)
    needs.ensure(*groups, install=install, say=progress.say)
    packer = program.find_packer()
    if target.preparation:
        with progress.stage(target.preparation):
            target = target.prepare(recipes, progress.say)
    return packer, target


def in_turns(recipes: list[Recipe], target: Target, progress: Progress) -> list[list[Recipe]]:
    """Recipes that run here natively, then those whose processor the lab has to emulate."""
    slow = [recipe for recipe in recipes if target.emulates(recipe.arch)]
    native = [recipe for recipe in recipes if recipe not in slow]
    for how in sorted({f"{recipe.arch} by {target.emulates(recipe.arch)}" for recipe in slow}):
        progress.say(f"emulated: {how}, many times slower than the rest of the lab")
    if slow and native:
        progress.say(f"{len(slow)} rows, after the others; --arch {native[0].arch} leaves them out")
    return [group for group in (native, slow) if group]


def _set_up(
    recipes: list[Recipe],
    options: Options,
    target: Target,
    progress: Progress,
    rebuilt: Rebuilt | None,
    *,
    install: bool,
) -> tuple[list[Plan], program.Packer]:
    """Prepare this machine for the recipes, and check their rendered plans."""
    own_kernel = options.own_kernel is not None
    packer, target = _ready(recipes, target, progress, install=install, own_kernel=own_kernel)
    planned = plans(recipes, options, target, rebuilt)
    if any(plan.account.ssh_interface == SESSION_MANAGER for plan in planned):
        session.require_plugin()
    if rebuilt is None:
        say_if_stale(recipes, progress)
    with progress.stage("parse the scripts"):
        for plan in planned:
            build_row.prepare(plan)
    for bucket in sorted(_buckets(planned)):
        if shelf := shelf_of(bucket, target):
            kept_runs(shelf, "none")  # a bucket that refuses is better known now than after a bake
    clean_dead_runs(target, progress)
    return planned, packer


def _buckets(planned: list[Plan]) -> set[str]:
    """The buckets in which records will be kept."""
    return {plan.account.records_bucket for plan in planned if plan.account.records_bucket}


def _check_flags(options: Options) -> None:
    """Refuse what is not of the form of an instance type."""
    for flag in ("instance_type", "verify_instance_type"):
        flags.instance_type(flag, getattr(options, flag))
    ssh_timeout()


def _check_region(account: Account, target: Target) -> None:
    """Refuse a region that is not there, and a key of another one."""
    if account.region:
        target.check_region(account.region, f"region ({account.origins['region']})")
    # A key of AWS serves in the lab too, in whatever region that says it is.
    region = account.region or (target.region if target.bills else None)
    if elsewhere := key_elsewhere(account.kms_key_id, region):
        raise KilnError(
            f"kms_key_id ({account.origins['kms_key_id']}): the key is in {elsewhere}, and the "
            f"build in {region}",
            hint="name a key of that region, or alias/NAME, of which each region has its own",
        )


def _compatible(recipes: list[Recipe], options: Options) -> None:
    """Refuse recipes and options that cannot work, before anything is launched."""
    # A value from the command line has no place in the matrix.
    types = ("instance_type", "verify_instance_type")
    typed = any(getattr(options, name) for name in types) or "instance_types" in options.aws_flags
    replaced = types if typed else ()
    chosen = []
    for recipe in recipes:
        account = overridden(recipe.row.account, options.aws_flags, recipe.arch)
        bakes = planning.types_in_order(recipe, account, options)
        row = recipe.row.without(*replaced).changed(account=account.changed(instance_types=bakes))
        verifies = options.verify_instance_type or recipe.verify_instance_type
        chosen.append(
            recipe.changed(instance_type=bakes[0], verify_instance_type=verifies, row=row)
        )
    refuse_errors(engine.check_matrix(chosen))


def say_if_stale(recipes: list[Recipe], progress: Progress) -> None:
    """Report that the committed HCL is not what will be baked."""
    if stale_files(recipes, orphans=False):
        progress.say(
            f"{shown_packer()}/ is stale: this build bakes what the matrix says now; {renewal()} "
            f"brings {shown_packer()}/ up to date"
        )


def _several(
    planned: list[Plan],
    packer: program.Packer,
    stop: Stop,
    failed: Callable[[KilnError, Recipe], None],
) -> list[Built]:
    """Build in parallel; a failure does not stop the other builds."""
    with ThreadPoolExecutor(max_workers=min(len(planned), _AT_ONCE)) as pool:
        pending = [
            pool.submit(
                build_row.build_recipe, plan, packer, Progress(label=plan.recipe.name), stop
            )
            for plan in planned
        ]
        ended = [
            _ended(plan, future, failed) for plan, future in zip(planned, pending, strict=True)
        ]
    return [build for build in ended if build]


def _ended(
    plan: Plan, future: Future[Built], failed: Callable[[KilnError, Recipe], None]
) -> Built | None:
    """Wait for one of several builds; report its failure instead of raising it."""
    try:
        return future.result()
    except KilnError as error:
        failed(error, plan.recipe)
    except OSError as error:
        failed(operation_failed(f"{plan.recipe.name}: {error}"), plan.recipe)
    except Exception as error:  # a mistake of ours must not cost the other rows their outcome
        traceback.print_exception(error)
        name = type(error).__name__
        failed(operation_failed(f"{plan.recipe.name}: {name}: {error}"), plan.recipe)
    return None
