"""From flags to finished builds: choose rows, choose a target, build one or several."""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from kiln.base import needs
from kiln.base.errors import KilnError
from kiln.base.findings import errors
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.base.stopping import Stop, on_signals
from kiln.cloud.target import Target
from kiln.compat import engine
from kiln.matrix import flags
from kiln.packer import program
from kiln.pipeline import build_row
from kiln.pipeline import plan as planning
from kiln.pipeline.draft import clean_dead_runs
from kiln.pipeline.plan import Options, Plan
from kiln.pipeline.record import Checks, Record

_AT_ONCE = 4


def run(
    recipes: list[Recipe],
    options: Options,
    *,
    target: Target,
    install: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Build these recipes (or show the plan); the exit status."""
    progress = Progress()
    progress.say(str(target))
    _compatible(recipes, options)
    if target.bills:
        for recipe in recipes:
            bakes = options.instance_type or recipe.instance_type
            checks = options.verify_instance_type or recipe.verify_instance_type
            kinds = " and ".join(dict.fromkeys([bakes, checks]))
            progress.say(f"will launch: {kinds} in {target.region} for {recipe.name}")
        target = target.identified()
        progress.say(f"account: {target.place}")
    if dry_run:
        _print_plans([planning.plan(recipe, target, options) for recipe in recipes], as_json)
        return 0
    stop = Stop()
    built = []
    for turn, some in enumerate(_in_turn(recipes, target, progress)):
        try:
            plans, found = _set_up(some, options, target, progress, install=install)
        except KilnError as error:
            if turn == 0:
                raise
            print(f"error: {error}", file=sys.stderr)
            break
        with on_signals(stop):
            if len(recipes) == 1:
                built = [build_row.build(plans[0], found, progress, stop)]
            else:
                built += _several(plans, found, stop)
        if stop.is_set():
            break
    if as_json:
        print(json.dumps([one.record.as_json() for one in built], indent=2))
    else:
        print("\n".join(summary(one.record) for one in built))
    return 0 if len(built) == len(recipes) and all(one.good for one in built) else 1


def summary(record: Record) -> str:
    """The end of a run for a person: the AMI, what is on it, its checks, where to read more."""
    recipe = record.recipe
    checks = record.checks or Checks(0, 0, 0, ())
    emulated = f", {recipe['arch']} by {record.emulated}" if record.emulated else ""
    note = f" ({record.image_note}{emulated})" if record.image_note else ""
    holds = [
        f"{label} {recipe[name]}"
        for name, label in (
            ("driver", "driver"),
            ("cuda", "CUDA"),
            ("cudnn", "cuDNN"),
            ("nccl", "NCCL"),
            ("efa", "EFA"),
        )
        if recipe.get(name)
    ]
    failed = [
        f"    failed: {check.file}::{check.name}: {_first_line(check.message)}"
        for check in checks.checks
        if check.outcome == "failed"
    ]
    return "\n".join(
        [
            "",
            f"{record.ami_id}  {record.status}{note}",
            f"  {recipe['name']} in {record.region}",
            f"  on it    {recipe['distro']['name']}, {', '.join(holds)}",
            f"  checks   {checks.passed} passed, {checks.failed} failed, {checks.skipped} skipped",
            *failed,
            *([f"  left     {', '.join(record.left)}"] if record.left else []),
            f"  record   {_near(record.folder)}/record.json",
            f"  report   {_near(record.folder)}/report.html",
        ]
    )


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "no message")


def _ready(
    recipes: list[Recipe], target: Target, progress: Progress, *, install: bool
) -> program.Packer:
    """Install what is missing here, and let the target prepare what the recipes need."""
    target.check_host()
    groups = ("packer", "ssh", *target.host_packages([recipe.arch for recipe in recipes]))
    needs.ensure(*groups, install=install, say=progress.say)
    found = program.find()
    if target.preparation:
        with progress.stage(target.preparation) as stage:
            target.prepare(recipes, stage.line)
    return found


def _near(folder: str) -> str:
    """A path as it reads best from here."""
    path = Path(folder)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _in_turn(recipes: list[Recipe], target: Target, progress: Progress) -> list[list[Recipe]]:
    """Rows that run here as they are, then those whose processor the lab has to emulate."""
    slow = [one for one in recipes if target.emulates(one.arch)]
    others = [one for one in recipes if one not in slow]
    for by in sorted({f"{one.arch} by {target.emulates(one.arch)}" for one in slow}):
        progress.say(f"emulated: {by}, many times slower than the rest of the lab")
    if slow and others:
        progress.say(f"{len(slow)} rows, after the others; --arch {others[0].arch} leaves them out")
    return [some for some in (others, slow) if some]


def _set_up(
    recipes: list[Recipe], options: Options, target: Target, progress: Progress, *, install: bool
) -> tuple[list[Plan], program.Packer]:
    """What these rows need on this machine, and their plans, rendered."""
    found = _ready(recipes, target, progress, install=install)
    plans = [planning.plan(recipe, target, options) for recipe in recipes]
    with progress.stage("render and policy"):
        for one in plans:
            build_row.prepare(one)
    clean_dead_runs(target, progress)
    return plans, found


def _compatible(recipes: list[Recipe], options: Options) -> None:
    """Refuse, before anything is launched, what is known not to work, also on the machines that
    are asked for."""
    for flag in ("instance_type", "verify_instance_type"):
        flags.instance_type(flag, getattr(options, flag))
    flags.subnet(options.subnet_id)
    # A value from the command line stands nowhere in the matrix.
    asked = [name for name in ("instance_type", "verify_instance_type") if getattr(options, name)]
    chosen = [
        replace(
            recipe,
            instance_type=options.instance_type or recipe.instance_type,
            verify_instance_type=options.verify_instance_type or recipe.verify_instance_type,
            row=recipe.row.without(*asked),
        )
        for recipe in recipes
    ]
    found = errors(engine.check_matrix(chosen))
    if found:
        raise KilnError("\n".join(map(str, found)))


def _several(plans: list[Plan], found: program.Packer, stop: Stop) -> list[build_row.Built]:
    """Build side by side; a row that fails does not stop the others."""
    with ThreadPoolExecutor(max_workers=min(len(plans), _AT_ONCE)) as pool:
        pending = [
            pool.submit(build_row.build, plan, found, Progress(label=plan.recipe.name), stop)
            for plan in plans
        ]
        built = [_ended(plan, one) for plan, one in zip(plans, pending, strict=True)]
    return [one for one in built if one]


def _ended(plan: Plan, one: Future[build_row.Built]) -> build_row.Built | None:
    """Wait for one of several builds; what ended it is said, and ends no other."""
    try:
        return one.result()
    except KilnError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {plan.recipe.name}: {error}", file=sys.stderr)
    return None


def _print_plans(plans: list[Plan], as_json: bool) -> None:
    if as_json:
        print(json.dumps([one.as_json() for one in plans], indent=2))
    else:
        print("\n\n".join(one.as_text() for one in plans))
