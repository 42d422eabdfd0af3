"""Tasks of builds: build, rebuild, verify, diff, sbom."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from kiln.base.progress import Progress
from kiln.cli.options import BuildSettings, Kernel, LaunchSettings, Place, RecordSettings, Rows
from kiln.cli.output import log, output, table
from kiln.cli.task import Flags, task

if TYPE_CHECKING:
    from rich.table import Table

    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.pipeline.plan import Options
    from kiln.pipeline.record import Record


@dataclass(frozen=True)
class Baking(Flags):
    """Machine

    instance_type: bake on another instance type: --instance-type g5.xlarge
    verify_instance_type: check on another type: --verify-instance-type p4d.24xlarge
    no_install: do not install system packages; fail if any is missing

    If it fails:
    keep: keep the AMI even if its checks did not finish

    Output:
    dry_run: show the plan (HCL, source AMI, instance types, steps) and start nothing
    """

    instance_type: str | None = None
    verify_instance_type: str | None = None
    no_install: bool = False
    keep: bool = False
    dry_run: bool = False


@task("Build")
def build(
    rows: Rows,
    place: Place,
    baking: Baking,
    settings: BuildSettings,
    on_error: str = "clean-up",
    vendors: str | None = None,
    all: bool = False,  # noqa: A002
    *,
    kernel: Kernel,
) -> int:
    """Build an AMI, boot it and check it.

    ./invoke build --distro al2 --driver 510.47.03
    ./invoke build --distro al2023 --driver 580 --target aws --region eu-central-1
    ./invoke build --name al2023-580.178.04-open-cuda13.0-base-x86_64 --dry-run
    ./invoke build --distro al2 --driver 510.47.03 --on-error keep

    Select rows:
    all: build every row that the other flags match; otherwise flavor base and x86_64 come first

    If it fails:
    on_error: after a failed bake, clean-up (default) or keep the instance: --on-error keep

    Lab only:
    vendors: package source in the lab: stand-ins (default) or real: --vendors real
    """
    from kiln.matrix import flags
    from kiln.pipeline.plan import Options

    recipes = rows.select(every=all)
    options = Options(
        instance_type=baking.instance_type,
        verify_instance_type=baking.verify_instance_type,
        aws_flags=settings.at(place),
        keep=baking.keep,
        keep_instance=flags.on_error(on_error),
        own_kernel=kernel.wanted(),
    )
    return _build(recipes, options, place.choose(vendors), baking)


@task("Build")
def rebuild(record: str, *, place: Place, baking: Baking, settings: BuildSettings) -> int:
    """Build again from a record, with its parent AMI and packages.

    ./invoke rebuild 20261121T031342Z-f94c

    record: a build: its record.json, run id, AMI id, or AMI name (its newest build)

    Target:
    region: AWS region (default: the record's, as its parent AMI): --region eu-central-1
    """
    from kiln.pipeline import records
    from kiln.pipeline.plan import Options, require_rebuildable

    settings.fetch_builds(record)
    built = records.find_record(record)
    recipe = require_rebuildable(built)
    kind = built.target if place.target == "auto" else place.target
    chosen = Place(kind, place.region or built.region).choose()
    options = Options(
        instance_type=baking.instance_type or built.instance_type,
        verify_instance_type=baking.verify_instance_type or built.verify_instance_type,
        aws_flags={"region": chosen.region, **settings.at(place)},
        keep=baking.keep,
    )
    return _build([recipe], options, chosen, baking, built)


def _build(
    recipes: list[Recipe],
    options: Options,
    target: Target,
    baking: Baking,
    rebuilt: Record | None = None,
) -> int:
    """Build the recipes, or show the plan, and print the outcome; return the exit status."""
    from kiln.pipeline.plan import announce, plan_builds, require_scripts

    progress, install = Progress(), not baking.no_install
    target = announce(recipes, options, target, progress.say, rebuilt)
    if baking.dry_run:
        require_scripts(recipes)
        planned = plan_builds(recipes, options, target, rebuilt)
        shown: list[str | Table] = []
        for plan in planned:
            rows = [(f"  {name}", text) for name, text in plan.rows()]
            steps = (f"  {number:2}. {step}" for number, step in enumerate(plan.steps, 1))
            shown += ["", plan.recipe.name, table((), rows), *steps]
        output([plan.to_dict() for plan in planned], *shown[1:])
        return 0
    from kiln.compat.engine import unconfirmed_of_row
    from kiln.pipeline import build as builds

    failed = functools.partial(log, error=True)
    outcome = builds.build_recipes(
        recipes, options, target, progress, install=install, on_failure=failed, rebuilt=rebuilt
    )
    unconfirmed = {recipe.name: len(unconfirmed_of_row(recipe)) for recipe in recipes}
    # A failure was reported when it happened, perhaps many lines ago.
    lines = [
        *(summary(record, unconfirmed[record.recipe.name]) for record in outcome.built),
        *([""] if outcome.built and outcome.failures else []),
        *(f"failed  {error}" for error in dict.fromkeys(outcome.failures.values())),
    ]
    output([record.to_dict() for record in outcome.built], "\n".join(lines))
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
    from kiln.cli.targets import kind_of_machine
    from kiln.pipeline import verify as verifies

    if sum(value is not None for value in (ami, instance, host)) != 1:
        raise KilnError("specify one of --ami, --instance and --host")
    if ami is None and (instance_type or kernel.own_kernel):
        raise KilnError("--instance-type and --own-kernel are for --ami")
    if ami is not None and (key or exercise):
        raise KilnError("--key and --exercise are for --instance and --host")
    target, progress, install = place.choose(), Progress(), not no_install
    if ami is None:
        machine = verifies.at_host(host) if host else verifies.at_instance(str(instance), target)
        judged = verifies.verify_running(
            *(machine, target, progress),
            kind_of_machine=kind_of_machine,
            key=key,
            keyword=k,
            exercise=exercise,
            install=install,
        )
    else:
        judged = verifies.verify_by_id(
            *(ami, instance_type),
            target=target,
            progress=progress,
            install=install,
            own_kernel=kernel.wanted(),
            aws_flags=settings.at(place),
            keyword=k,
        )
    output(judged.to_dict(), summary(judged))
    if k or ami is None:  # no verdict
        return int(judged.status == "failed" or bool(judged.left))
    return int(not judged.succeeded)


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
        f"  contents {recipe.distro.name}, {', '.join(holds)}",
        f"  checks   {checks.passed} passed, {checks.failed} failed, {checks.skipped} skipped",
    ]
    for check in checks.checks:
        if check.outcome == "failed":
            first = check.message.strip().partition("\n")[0] or "no message"
            lines.append(f"    failed: {check.file}::{check.name}: {first}")
    if unconfirmed:
        lines.append(f"  facts    {unconfirmed} unconfirmed: ./invoke check --strict")
    if record.left:
        lines.append(f"  left     {', '.join(record.left)}")
    lines += [f"  record   {folder}/record.json", f"  report   {folder}/report.html"]
    if record.kind == "build" and record.status == "verified":
        lines.append(f"  next     ./invoke publish --name {recipe.name}")
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
    output(answer, table((), comparison.diff_rows(answer)), *comparison.diff_summary(answer))


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
