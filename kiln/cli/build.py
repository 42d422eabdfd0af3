"""Tasks that start instances: build, rebuild, verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import (
    JSON,
    LAUNCH,
    OWN_KERNEL,
    ROWS,
    TARGET,
    Selection,
    account_help,
    replaces_settings,
    selects_rows,
)
from kiln.cli.front import report, show, task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import OwnKernel
    from kiln.pipeline.build import Outcome
    from kiln.pipeline.plan import Plan


@task(
    help={
        **ROWS,
        **TARGET,
        "instance-type": "bake on another instance type: --instance-type g5.xlarge",
        "verify-instance-type": "check on another type: --verify-instance-type p4d.24xlarge",
        **account_help(),
        "dry-run": "show the plan (HCL, source AMI, instance types, steps) and start nothing",
        "keep": "keep an AMI that is not verified (interrupted run, checks that did not run)",
        "on-error": "of a bake that fails: clean-up (default), or --on-error keep its instance",
        "vendors": "whose hosts the lab's guests ask: stand-ins (default) or --vendors real",
        **OWN_KERNEL,
        **JSON,
    }
)
@selects_rows
@replaces_settings()
def build(
    c: Context,
    selection: Selection,
    aws_flags: dict[str, str],
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    instance_type: str | None = None,
    verify_instance_type: str | None = None,
    dry_run: bool = False,
    keep: bool = False,
    on_error: str = "clean-up",
    vendors: str | None = None,
    own_kernel: bool = False,
    disk: str | None = None,
    json: bool = False,
) -> int:
    """Build an AMI, boot it, check it, record it: --distro al2 --driver 510.47.03"""
    from kiln.base.progress import Progress
    from kiln.matrix import flags as matrix_flags
    from kiln.matrix import load, select
    from kiln.pipeline import build as builds
    from kiln.pipeline.plan import Options

    recipes = select.select(load.load_recipes(), **selection)
    options = Options(
        instance_type=instance_type,
        verify_instance_type=verify_instance_type,
        aws_flags=aws_flags,
        keep=keep,
        keep_instance=matrix_flags.on_error(on_error),
        own_kernel=_own_kernel(own_kernel, disk),
    )
    from kiln.cli import targets  # slow to import

    progress = Progress()
    chosen = targets.choose(target, region, vendors)
    place = builds.announce(recipes, options, chosen, progress.say)
    if dry_run:
        return _show_plans(builds.dry_run(recipes, options, place), as_json=json)
    outcome = builds.build_recipes(
        recipes, options, place, progress, install=not no_install, on_failure=report
    )
    return _show_outcome(outcome, recipes, as_json=json)


@task(
    positional=["record"],
    help={
        "record": "a build: its record.json, run id, AMI id, or AMI name (its newest build)",
        **TARGET,
        "region": "AWS region (default: the record's, as its parent AMI): --region eu-central-1",
        "instance-type": "bake on another type than the record's: --instance-type g5.xlarge",
        "verify-instance-type": "check on another type: --verify-instance-type p4d.24xlarge",
        **account_help(),
        "dry-run": "show the plan and start nothing",
        "keep": "keep an AMI that is not verified (interrupted run, checks that did not run)",
        **JSON,
    },
)
@replaces_settings()
def rebuild(
    c: Context,
    record: str,
    aws_flags: dict[str, str],
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    instance_type: str | None = None,
    verify_instance_type: str | None = None,
    dry_run: bool = False,
    keep: bool = False,
    json: bool = False,
) -> int:
    """Bake again from a record: its recipe, its parent AMI, its package snapshot."""
    from kiln.base.progress import Progress
    from kiln.cli import fetched_records, targets
    from kiln.pipeline import build as builds
    from kiln.pipeline import records
    from kiln.pipeline.plan import Options, rebuild_inputs

    fetched_records.bring_for_names(aws_flags, record)
    built = records.find_record(record)
    recipe, rebuilt = rebuild_inputs(built)
    chosen = targets.choose(built.target if target == "auto" else target, region or built.region)
    options = Options(
        instance_type=instance_type or built.instance_type,
        verify_instance_type=verify_instance_type or built.verify_instance_type,
        aws_flags={"region": chosen.region, **aws_flags},
        keep=keep,
    )
    progress = Progress()
    place = builds.announce([recipe], options, chosen, progress.say, rebuilt)
    if dry_run:
        return _show_plans(builds.dry_run([recipe], options, place, rebuilt), as_json=json)
    outcome = builds.build_recipes(
        [recipe],
        options,
        place,
        progress,
        install=not no_install,
        on_failure=report,
        rebuilt=rebuilt,
    )
    return _show_outcome(outcome, [recipe], as_json=json)


@task(
    help={
        "ami": "an AMI that AMI Kiln built: --ami ami-0123456789abcdef0",
        "instance": "check a running instance instead: --instance i-0123456789abcdef0",
        "host": "check a running machine instead: --host ec2-user@203.0.113.7",
        "key": "private key for --instance or --host: --key ~/.ssh/id_ed25519",
        "k": "only the checks of this name; no verdict then: -k fabricmanager",
        "exercise": "with --instance or --host: also the checks that act on the machine",
        "instance-type": "boot it as this type: --instance-type p4d.24xlarge",
        **TARGET,
        **account_help(LAUNCH),
        **OWN_KERNEL,
        **JSON,
    }
)
@replaces_settings(LAUNCH)
def verify(
    c: Context,
    aws_flags: dict[str, str],
    ami: str | None = None,
    instance: str | None = None,
    host: str | None = None,
    key: str | None = None,
    k: str | None = None,
    exercise: bool = False,
    instance_type: str | None = None,
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    own_kernel: bool = False,
    disk: str | None = None,
    json: bool = False,
) -> int:
    """Boot an AMI, run its checks, tag it with the verdict; or check a machine that runs."""
    from kiln.base.progress import Progress
    from kiln.cli import targets
    from kiln.cli.summary import summary
    from kiln.pipeline import running
    from kiln.pipeline import verify as verifies

    named = {"--ami": ami, "--instance": instance, "--host": host}
    if sum(value is not None for value in named.values()) != 1:
        flags = ", ".join(named)
        raise KilnError(f"verify needs one of {flags}", hint="./invoke --help verify explains them")
    if instance or host:
        for flag, value in (("--instance-type", instance_type), ("--own-kernel", own_kernel)):
            if value:
                raise KilnError(f"{flag} is for --ami: a machine that runs is what it is")
        place = targets.choose(target, region)
        checked = running.verify_running(
            running.at_host(host) if host else running.at_instance(str(instance), place),
            place,
            Progress(),
            kind_of_machine=targets.kind_of_machine,
            key=key,
            keyword=k,
            exercise=exercise,
            install=not no_install,
        )
        show(checked.as_json(), as_json=json, text=lambda data: summary(checked))
        return int(checked.status == "failed")
    for flag, value in (("--key", key), ("--exercise", exercise)):
        if value:
            raise KilnError(f"{flag} is for --instance and --host")
    judged = verifies.verify_by_id(
        str(ami),
        instance_type,
        target=targets.choose(target, region),
        progress=Progress(),
        install=not no_install,
        own_kernel=_own_kernel(own_kernel, disk),
        aws_flags=aws_flags,
        keyword=k,
    )
    show(judged.as_json(), as_json=json, text=lambda data: summary(judged))
    if k:
        return int(judged.status == "failed" or bool(judged.left))
    return int(not judged.succeeded)


def _own_kernel(wanted: bool, disk: str | None) -> OwnKernel | None:
    """What --own-kernel and --disk ask for. Raises KilnError (exit status 2)."""
    from kiln.cloud.target import OwnKernel
    from kiln.matrix import flags

    keep = flags.disk(disk, own_kernel=wanted)
    return OwnKernel(keep) if wanted else None


def _show_plans(planned: list[Plan], *, as_json: bool) -> int:
    show(
        [plan.as_json() for plan in planned],
        as_json=as_json,
        text=lambda data: "\n\n".join(plan.as_text() for plan in planned),
    )
    return 0


def _show_outcome(outcome: Outcome, recipes: list[Recipe], *, as_json: bool) -> int:
    from kiln.cli.summary import summary
    from kiln.compat.unconfirmed import unconfirmed_of_row

    unconfirmed = {recipe.name: len(unconfirmed_of_row(recipe)) for recipe in recipes}

    show(
        [record.as_json() for record in outcome.built],
        as_json=as_json,
        # A failure was reported when it happened, perhaps many lines ago.
        text=lambda data: "\n".join(
            [
                *(summary(record, unconfirmed[record.recipe["name"]]) for record in outcome.built),
                *([""] if outcome.built and outcome.failures else []),
                *(f"failed  {error}" for error in dict.fromkeys(outcome.failures.values())),
            ]
        ),
    )
    return 0 if outcome.succeeded else 1
