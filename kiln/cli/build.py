"""Tasks of builds: build, rebuild, verify, diff, sbom."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from kiln.cli.options import Kernel, LaunchSettings, Place, RecordSettings, Rows, Settings
from kiln.cli.output import log, output
from kiln.cli.task import task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.pipeline.plan import Options, Rebuilt
    from kiln.pipeline.record import Record


@task("Build")
def build(
    rows: Rows,
    place: Place,
    instance_type: str | None = None,
    verify_instance_type: str | None = None,
    no_install: bool = False,
    *,
    settings: Settings,
    keep: bool = False,
    on_error: str = "clean-up",
    vendors: str | None = None,
    kernel: Kernel,
    dry_run: bool = False,
) -> int:
    """Build an AMI, boot it and check it.

    ./invoke build --distro al2 --driver 510.47.03
    ./invoke build --distro al2023 --driver 580 --target aws --region eu-central-1
    ./invoke build --name al2023-580.178.04-cuda13.0-base-x86_64 --dry-run
    ./invoke build --distro al2 --driver 510.47.03 --on-error keep

    Machine:
    instance_type: bake on another instance type: --instance-type g5.xlarge
    verify_instance_type: check on another type: --verify-instance-type p4d.24xlarge
    no_install: install no system packages: if some are missing, say how to and stop

    If it fails:
    keep: keep an AMI that is not verified (interrupted run, checks that did not run)
    on_error: of a bake that fails: clean-up (default), or --on-error keep its instance

    Lab only:
    vendors: whose hosts the lab's guests ask: stand-ins (default) or --vendors real

    Output:
    dry_run: show the plan (HCL, source AMI, instance types, steps) and start nothing
    """
    from kiln.matrix import flags
    from kiln.pipeline.plan import Options

    recipes = rows.select()
    options = Options(
        instance_type=instance_type,
        verify_instance_type=verify_instance_type,
        aws_flags=settings.at(place),
        keep=keep,
        keep_instance=flags.on_error(on_error),
        own_kernel=kernel.wanted(),
    )
    return _build(recipes, options, place.choose(vendors), dry_run, not no_install)


@task("Build")
def rebuild(
    record: str,
    *,
    place: Place,
    instance_type: str | None = None,
    verify_instance_type: str | None = None,
    no_install: bool = False,
    settings: Settings,
    keep: bool = False,
    dry_run: bool = False,
) -> int:
    """Build again from a record, with its parent AMI and packages.

    ./invoke rebuild 20261121T031342Z-f94c

    record: a build: its record.json, run id, AMI id, or AMI name (its newest build)
    instance_type: bake on another type than the record's: --instance-type g5.xlarge
    verify_instance_type: check on another type: --verify-instance-type p4d.24xlarge
    keep: keep an AMI that is not verified (interrupted run, checks that did not run)
    dry_run: show the plan and start nothing

    Target:
    region: AWS region (default: the record's, as its parent AMI): --region eu-central-1
    """
    from kiln.pipeline import records
    from kiln.pipeline.plan import Options, rebuild_inputs

    aws_flags = settings.at(place)
    settings.fetch_builds(record)
    built = records.find_record(record)
    recipe, rebuilt = rebuild_inputs(built)
    kind = built.target if place.target == "auto" else place.target
    chosen = Place(kind, place.region or built.region).choose()
    options = Options(
        instance_type=instance_type or built.instance_type,
        verify_instance_type=verify_instance_type or built.verify_instance_type,
        aws_flags={"region": chosen.region, **aws_flags},
        keep=keep,
    )
    return _build([recipe], options, chosen, dry_run, not no_install, rebuilt)


def _build(
    recipes: list[Recipe],
    options: Options,
    target: Target,
    dry_run: bool,
    install: bool,
    rebuilt: Rebuilt | None = None,
) -> int:
    """Build the recipes, or show the plan, and print the outcome; return the exit status."""
    from kiln.base.progress import Progress
    from kiln.compat.engine import unconfirmed_of_row
    from kiln.pipeline import build as builds

    progress = Progress()
    target = builds.announce(recipes, options, target, progress.say, rebuilt)
    if dry_run:
        planned = builds.dry_run(recipes, options, target, rebuilt)
        text = "\n\n".join(plan.as_text() for plan in planned)
        output([plan.as_json() for plan in planned], text)
        return 0
    on_failure = functools.partial(log, error=True)
    outcome = builds.build_recipes(
        recipes, options, target, progress, install=install, on_failure=on_failure, rebuilt=rebuilt
    )
    unconfirmed = {recipe.name: len(unconfirmed_of_row(recipe)) for recipe in recipes}
    # A failure was reported when it happened, perhaps many lines ago.
    lines = [
        *(summary(record, unconfirmed[record.recipe.name]) for record in outcome.built),
        *([""] if outcome.built and outcome.failures else []),
        *(f"failed  {error}" for error in dict.fromkeys(outcome.failures.values())),
    ]
    output([record.as_json() for record in outcome.built], "\n".join(lines))
    return 0 if outcome.succeeded else 1


@task("Build")
def verify(
    ami: str | None = None,
    instance: str | None = None,
    host: str | None = None,
    key: str | None = None,
    k: str | None = None,
    exercise: bool = False,
    instance_type: str | None = None,
    no_install: bool = False,
    *,
    place: Place,
    settings: LaunchSettings,
    kernel: Kernel,
) -> int:
    """Boot an AMI, check it and tag it, or check a machine.

    ./invoke verify --ami ami-0123456789abcdef0
    ./invoke verify --instance i-0123456789abcdef0

    ami: an AMI that AMI Kiln built: --ami ami-0123456789abcdef0
    instance: check a running instance instead: --instance i-0123456789abcdef0
    host: check a running machine instead: --host ec2-user@203.0.113.7
    key: private key for --instance or --host: --key ~/.ssh/id_ed25519
    k: only the checks of this name; no verdict then: -k fabricmanager
    exercise: with --instance or --host: also the checks that act on the machine
    instance_type: boot it as this type: --instance-type p4d.24xlarge
    """
    from kiln.base.progress import Progress
    from kiln.pipeline import verify as verifies

    if sum(value is not None for value in (ami, instance, host)) != 1:
        raise KilnError("specify one of --ami, --instance and --host")
    if ami is None:
        if instance_type or kernel.own_kernel:
            raise KilnError("--instance-type and --own-kernel are for --ami")
        return _verify_running(instance, host, place.choose(), key, k, exercise, not no_install)
    if key or exercise:
        raise KilnError("--key and --exercise are for --instance and --host")
    judged = verifies.verify_by_id(
        ami,
        instance_type,
        target=place.choose(),
        progress=Progress(),
        install=not no_install,
        own_kernel=kernel.wanted(),
        aws_flags=settings.at(place),
        keyword=k,
    )
    output(judged.as_json(), summary(judged))
    if k:
        return int(judged.status == "failed" or bool(judged.left))
    return int(not judged.succeeded)


def _verify_running(
    instance: str | None,
    host: str | None,
    target: Target,
    key: str | None,
    keyword: str | None,
    exercise: bool,
    install: bool,
) -> int:
    from kiln.base.progress import Progress
    from kiln.cli import targets
    from kiln.pipeline import running

    checked = running.verify_running(
        running.at_host(host) if host else running.at_instance(str(instance), target),
        target,
        Progress(),
        kind_of_machine=targets.kind_of_machine,
        key=key,
        keyword=keyword,
        exercise=exercise,
        install=install,
    )
    output(checked.as_json(), summary(checked))
    return int(checked.status == "failed")


def summary(record: Record, unconfirmed: int = 0) -> str:
    """Return the summary of a run: the AMI, what is on it, its checks, where to read more.

    `unconfirmed` is the number of unconfirmed facts that its recipe rests on.
    """
    from kiln.base.paths import near
    from kiln.pipeline.checks import Checks

    recipe, checks = record.recipe, record.checks or Checks(0, 0, 0, ())
    emulated = f", {recipe.arch} by {record.emulated}" if record.emulated else ""
    own = f"; checked with its own kernel by {record.own_kernel}" if record.own_kernel else ""
    note = f" ({record.image_note}{emulated}{own})" if record.image_note else ""
    labels = {"driver": "driver", "cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "efa": "EFA"}
    values = {label: getattr(recipe, name) for name, label in labels.items()}
    holds = [f"{label} {value}" for label, value in values.items() if value]
    folder = near(Path(record.folder))
    lines = [
        "",
        f"{record.ami_id or 'no AMI'}  {record.status}{note}",
        f"  {recipe.name} in {record.region}",
        f"  on it    {recipe.distro.name}, {', '.join(holds)}",
        f"  checks   {checks.passed} passed, {checks.failed} failed, {checks.skipped} skipped",
    ]
    for check in checks.checks:
        if check.outcome == "failed":
            first = next(
                (line for line in check.message.splitlines() if line.strip()), "no message"
            )
            lines.append(f"    failed: {check.file}::{check.name}: {first}")
    if unconfirmed:
        lines.append(f"  facts    {unconfirmed} unconfirmed: ./invoke check --strict")
    if record.left:
        lines.append(f"  left     {', '.join(record.left)}")
    lines += [f"  record   {folder}/record.json", f"  report   {folder}/report.html"]
    return "\n".join(lines)


@task("Build")
def diff(a: str, b: str, *, records: RecordSettings) -> None:
    """Compare two builds, the riskiest change first.

    ./invoke diff ami-0123456789abcdef0 ami-0fedcba9876543210

    a: AMI id, AMI name or record of a build: ./invoke diff A B
    b: the newer build
    """
    from kiln.image import diff as comparison

    records.fetch_builds(a, b)
    answer = comparison.compare_images(a, b)
    output(answer, comparison.diff_text(answer))


@task("Build")
def sbom(ami: str, *, records: RecordSettings) -> None:
    """Print the CycloneDX SBOM of an AMI as JSON.

    ./invoke sbom al2-510.47.03-cuda11.6-base-x86_64 > sbom.json

    ami: AMI name, AMI id, record.json or version-info.json
    """
    from kiln.image import sbom as bom

    records.fetch_builds(ami)
    text = bom.image_sbom(ami)
    output(json.loads(text), text)
