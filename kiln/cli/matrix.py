"""Tasks of the matrix: list, check, which, preflight, render, validate, lock."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import errors, needs, overlay, vocabulary
from kiln.base.errors import INVALID_INPUT, OPERATION_FAILED, KilnError
from kiln.cli.options import RecordSettings, Rows
from kiln.cli.output import log, output, table
from kiln.cli.task import Flags, task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.pipeline.record import Record

_STYLES = {"verified": "green", "failed": "red", "unverified": "yellow"}


@task("Matrix", "list")
def list_(rows: Rows, records: RecordSettings) -> None:
    """Show the AMIs of the matrix and their last builds."""
    from kiln.pipeline import records as kept

    recipes = rows.select()
    records.fetch_newest([recipe.name for recipe in recipes])
    last = {recipe.name: kept.last(recipe.name) for recipe in recipes}
    show_rows(recipes, last, _gone(last.values()))


def _gone(records: Iterable[Record | None]) -> set[str]:
    """Return the AMIs of these records that no longer exist, as far as that can be asked."""
    from kiln.cli import targets
    from kiln.cloud import aws, images

    places: dict[tuple[str, str], list[str]] = {}
    for record in filter(None, records):
        if record.ami_id:
            places.setdefault((record.target, record.region), []).append(record.ami_id)
    gone: set[str] = set()
    for (kind, region), ami_ids in places.items():
        if kind == "lab" or aws.find_credentials():
            try:
                gone |= images.missing_images(targets.choose(kind, region), ami_ids)
            except KilnError as error:
                log(error.message)
    return gone


def show_rows(
    recipes: Sequence[Recipe], records: Mapping[str, Record | None], gone: Collection[str] = ()
) -> None:
    """Print each AMI, what its name does not say, and its last build: `records` by its name."""
    fields = ("driver", "kernel_module", "cuda", "nccl", "efa", "flavor", "arch")
    rows, cells = [], []
    for recipe in recipes:
        record = records.get(recipe.name)
        status: str = record.status if record else "not built"
        finished, ami_id = (record.finished, record.ami_id) if record else (None, None)
        if ami_id in gone:
            status = "gone"
        row: dict[str, Any] = {"name": recipe.name, "distro": recipe.distro.id}
        row |= {name: getattr(recipe, name) for name in fields}
        shown = " ".join(filter(None, [status, ami_id, (finished or "")[:10]]))
        texts = (recipe.name, recipe.nccl or "-", recipe.efa or "-")
        cells.append((*texts, (shown, _STYLES.get(status, "dim"))))
        build = {"status": status, "finished": finished, "ami_id": ami_id}
        rows.append({**row, "last_build": build})
    output(rows, table(("AMI", "NCCL", "EFA", "last build"), cells))


@dataclass(frozen=True)
class Combination(Flags):
    """Combination instead of rows

    nccl: --nccl 2.12.7
    efa: EFA installer: --efa 1.34.0
    instance_type: instance type that it must run on: --instance-type p5.48xlarge
    kubernetes: with flavor eks: --flavor eks --kubernetes 1.35
    parallelcluster: with flavor parallelcluster: --parallelcluster 3.16.3
    """

    nccl: str | None = None
    efa: str | None = None
    instance_type: str | None = None
    kubernetes: str | None = None
    parallelcluster: str | None = None


@task("Matrix")
def check(rows: Rows, combination: Combination, strict: bool = False, verbose: bool = False) -> int:
    """Check that the matrix, rows or one combination can work.

    ./invoke check
    ./invoke check --driver 580
    ./invoke check --distro al2023 --driver 580.178.04 --instance-type p5.48xlarge

    strict: treat end-of-life, untested and unconfirmed entries as errors
    verbose: also print the warnings that rows accept, and every detail
    """
    answer = check_answer({**asdict(rows), **asdict(combination)}, strict=strict)
    output(answer, findings_text(answer, verbose=verbose))
    wrong = any(finding["level"] == "error" for finding in answer["findings"])
    return INVALID_INPUT if wrong else 0


def check_answer(versions: dict[str, str | None], *, strict: bool) -> dict[str, Any]:
    """Return the findings for a combination, or for the rows of the matrix that the values select.

    The beginning of a driver version selects rows, a whole version with a distribution does not.
    """
    from kiln.compat import engine
    from kiln.compat.engine import unconfirmed_of_row
    from kiln.components import rendered
    from kiln.facts import table
    from kiln.matrix import flags, load
    from kiln.publish.lines import published_regions
    from kiln.publish.regions import require_regions

    chosen: dict[str, Any] = {name: value for name, value in versions.items() if value is not None}
    recipes = load.load_recipes()
    whole = {"distro", "driver"} <= chosen.keys() and not _drivers(recipes, **chosen)
    if chosen.keys() & vars(Combination()) or (whole and "name" not in chosen):
        _require_versions(chosen, recipes)
        kind = chosen.pop("instance_type", None)
        chosen |= {"instance_types": (kind,) if kind else ()}
        answer = engine.check_combination(**chosen, strict=strict)
        types = [name for name in answer["instance_types"] if kind in (None, name)]
        return {**answer, "instance_types": types}
    recipes = flags.select(recipes, every=True, **chosen)
    publishing = load.load_publishing()
    homes = {recipe.row.account.region for recipe in recipes} - {None}
    require_regions(map(str, homes), "`aws.region`:")
    published_regions(publishing)
    for path in overlay.own_files("facts/*.yaml"):
        table(path.stem)  # also one that no rule reads
    findings = [
        *engine.check_matrix(recipes, strict=strict),
        *load.sharing_warnings(recipes, publishing, strict=strict),
    ]
    rests_on = {recipe.name: unconfirmed_of_row(recipe) for recipe in recipes}
    return {
        "amis": len(recipes),
        "findings": [finding.to_dict() for finding in findings],
        "instance_types": sorted({t for recipe in recipes for t in recipe.target_instance_types}),
        "unconfirmed_facts": len({fact.message for found in rests_on.values() for fact in found}),
        "unconfirmed_by_row": {name: len(found) for name, found in rests_on.items()},
        "replaced": rendered.replaced_files(),
    }


def _drivers(
    recipes: Sequence[Recipe], *, driver: str, distro: str | None = None, **more: str
) -> list[str]:
    """Return the drivers of the rows, on a distribution, that begin with an incomplete version."""
    rows = [recipe for recipe in recipes if distro in (None, recipe.distro.id)]
    return sorted({recipe.driver for recipe in rows if recipe.driver.startswith(f"{driver}.")})


def _require_versions(chosen: dict[str, str], recipes: Sequence[Recipe]) -> None:
    """Require a distribution, a driver, and whole versions that the flavor has. The beginning of a
    driver version becomes the version of the rows on that distribution."""

    forms = {
        **dict.fromkeys(("nccl", "efa", "parallelcluster"), vocabulary.THREE_NUMBERS),
        "driver": vocabulary.DRIVER,
        "cuda": vocabulary.SERIES_OR_RELEASE,
        "kubernetes": vocabulary.KUBERNETES,
    }
    flavors = {"kubernetes": "eks", "parallelcluster": "parallelcluster"}
    if "name" in chosen:
        raise KilnError("--name is for rows of the matrix, not for a combination")
    if not {"distro", "driver"} <= chosen.keys():
        hint = "./invoke check --distro al2 --driver 510.47.03, or no flags for the matrix"
        raise KilnError("a combination needs --distro and --driver", hint=hint)
    if drivers := _drivers(recipes, **chosen):
        if len(drivers) > 1:
            wrong = f"--driver {chosen['driver']} is several drivers: {', '.join(drivers)}"
            raise KilnError(wrong, hint="name one of them")
        chosen["driver"] = drivers[0]
    for name, value in chosen.items():
        if name in flavors and chosen.get("flavor") != flavors[name]:
            raise KilnError(f"--{name} needs --flavor {flavors[name]}")
        if name in forms:
            forms[name].required(value, f"--{name}")


def findings_text(
    answer: dict[str, Any], width: int | None = None, *, verbose: bool = False
) -> str:
    """Return the verdict and the findings for a person, those of a rule together, errors last.

    `width` is the terminal's width in columns; a pipe gets unfolded lines. Without `verbose`,
    accepted warnings are only counted.
    """
    from kiln.compat.engine import UNCONFIRMED

    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    findings = errors.gravest_last(errors.Finding.from_json(entry) for entry in answer["findings"])
    rules = {finding.rule for finding in findings}
    number = Counter(finding.level for finding in findings)
    of_matrix, wrong = "amis" in answer, number["error"]
    untried = not of_matrix and "UNTRIED" in rules
    unproven = {finding.rule for finding in findings if finding.level == "error"} <= {UNCONFIRMED}
    verdict = "not confirmed" if unproven else "cannot work"
    if not wrong:
        verdict = "untried" if untried else "valid"
    counts = f"{_counted(wrong, 'error')}, {_counted(number['warning'], 'warning')}"
    subject = _counted(answer["amis"], "AMI") if of_matrix else "this combination"
    lines = [f"{subject}: {verdict} ({counts})"]
    if number["accepted"] and not verbose:
        lines.append(
            f"{_counted(number['accepted'], 'accepted warning')}: ./invoke check --verbose"
        )
    if not of_matrix and not wrong:
        lines.append("not judged: whether its packages are published (./invoke preflight)")
    if answer["unconfirmed_facts"] and UNCONFIRMED not in rules:
        by_row = answer.get("unconfirmed_by_row", {})
        rows = f" in {_counted(sum(map(bool, by_row.values())), 'AMI')}" if by_row else ""
        facts = _counted(answer["unconfirmed_facts"], "unconfirmed fact")
        lines.append(f"{facts}{rows}: ./invoke check --strict")
    for ours, theirs in answer.get("replaced", {}).items():
        lines.append(f"the overlay replaces {ours} by {theirs}")
    if answer["instance_types"] and not of_matrix:
        serves = "by the facts it would serve" if untried else "serves"
        lines.append(f"{serves}: {', '.join(answer['instance_types'])}")
    shown = [each for each in findings if verbose or each.level != "accepted"]
    details = errors.findings_lines(shown, *([width] if width else []))
    return "\n".join([*lines, *([""] if details else []), *details])


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


@task("Matrix")
def which(rows: Rows, instance_type: str | None = None, verbose: bool = False) -> int:
    """Find the AMI for an instance type or a purpose.

    ./invoke which --instance-type p5.48xlarge

    instance_type: an EC2 GPU instance type: --instance-type p5.48xlarge
    verbose: also print why each row serves or does not
    """
    from kiln.compat.which import HEADINGS, rows_for, table_rows, which_text
    from kiln.matrix import load

    if not (instance_type or rows):
        raise KilnError("specify --instance-type, or rows, such as --flavor eks")
    recipes, number = rows.select(), len(load.load_recipes())
    answer = rows_for(instance_type, recipes, flavor=rows.flavor)
    answer |= {"left_out": number - len(recipes)}
    first = [f"{instance_type}: {answer['gpus']}"] if instance_type else []
    last = [which_text(answer)] if verbose else ["reasons: add --verbose"]
    if left_out := answer["left_out"]:
        last.append(f"{_counted(left_out, 'row')} of the matrix not selected")
    output(answer, *first, table(HEADINGS, table_rows(answer, recipes)), *last)
    return 0 if answer["serves"] else 1


@task("Matrix")
def preflight(
    rows: Rows, download: bool = False, region: str | None = None, no_install: bool = False
) -> int:
    """Check that vendors still publish all build inputs.

    ./invoke preflight --distro al2023

    download: fetch files whose SHA-256 is known, and compare them (gigabytes)
    region: region of the parent AMIs, if there are credentials: --region eu-central-1
    """
    from kiln.cli import targets
    from kiln.cloud import aws
    from kiln.matrix import load
    from kiln.preflight import answers
    from kiln.preflight.ask import ask
    from kiln.preflight.indexes import State

    recipes = rows.select(every=True)
    if ours := load.load_account("").mirrors:
        pairs = " ".join(f"{vendor}={mirror}" for vendor, mirror in ours.items())
        os.environ.setdefault("KILN_MIRRORS", pairs)
    families = {f"preflight_{recipe.distro.family}" for recipe in recipes}
    needs.ensure("preflight", *sorted(families), install=not no_install, say=log)
    target = targets.choose(region=region) if aws.find_credentials() else None
    with tempfile.TemporaryDirectory(prefix="kiln-preflight-") as folder:
        asked = ask(recipes, Path(folder), whole_files=download, say=log, target=target)
    rows_table = table(answers.HEADINGS, [row.cells() for row in asked])
    output([row.to_dict() for row in asked], rows_table, answers.summary_text(asked))
    return 0 if all(row.state is State.PUBLISHED for row in asked) else 1


@task("Matrix")
def render(rows: Rows, check: bool = False) -> int:
    """Write the Packer HCL of the AMIs to packer/.

    check: write nothing; fail if what is committed is stale
    """
    from kiln.packer.render import renewal, shown_packer, stale_files, write_all

    recipes = rows.select()
    number = len(recipes)
    if not check:
        written = write_all(recipes, whole=not rows)
        text = "\n".join(written) or f"nothing to change ({number} AMIs)"
        output({"amis": number, "written": written}, text)
        return 0
    stale = stale_files(recipes, whole=not rows)
    last = f"{shown_packer()}/ matches the matrix ({number} AMIs)"
    if stale:
        last = f"{shown_packer()}/ is stale: run {renewal()}, and commit"
    output({"amis": number, "stale": stale}, *stale, last)
    return OPERATION_FAILED if stale else 0


@task("Matrix")
def validate(rows: Rows, no_install: bool = False) -> int:
    """Validate the rendered HCL with the policy and Packer."""
    from kiln.packer import program
    from kiln.packer import validate as validation
    from kiln.packer.render import renewal, shown_packer, stale_files

    recipes = rows.select()
    packer = program.find_packer(install=not no_install, say=log)
    results = validation.validate_recipes(recipes, packer)
    answer = [
        {"name": name, "valid": not found, "findings": [finding.to_dict() for finding in found]}
        for name, found in results.items()
    ]
    valid = sum(not found for found in results.values())
    output(
        answer,
        *(f"{'INVALID' if found else 'valid'}  {name}" for name, found in results.items()),
        *errors.findings_lines(
            errors.by_cause(each for found in results.values() for each in found)
        ),
        f"{valid} of {len(answer)} AMIs have valid HCL; not judged here: whether their versions "
        "exist and work together (./invoke check)",
    )
    if stale_files(recipes, whole=not rows):
        log(f"{shown_packer()}/ is out of date and was not validated: run {renewal()}")
    return 0 if valid == len(answer) else INVALID_INPUT


@task("Matrix")
def lock(update: bool = False, from_: str | None = None) -> int:
    """Compare what bakes download with amis.lock.yaml.

    ./invoke lock --update

    update: write amis.lock.yaml
    from_: lock the hashes that a build in AWS saw: --from RUN-ID, a record or an AMI name
    """
    from kiln.facts.packages import read_lock_file
    from kiln.matrix import load
    from kiln.packer import lock as locking
    from kiln.pipeline import records

    if update and from_:
        raise KilnError("lock takes --update or --from, not both", hint="run --update first")
    if from_:
        build = records.find_record(from_)
        if not build.versions:
            raise KilnError(
                f"run {build.run_id} has no versions: it ended before its AMI was checked",
                hint="choose a run whose status is verified",
            )
        downloads, run = build.versions["downloads"], f"run {build.run_id}"
        change = locking.record_hashes(downloads, note=build.image_note, when=run)
    elif update:
        change = locking.update_lock(load.load_recipes())
    else:
        change = locking.plan_lock(load.load_recipes(), read_lock_file())
    differs = bool(change) and not (update or from_)
    hint = "\nthe lock file differs from the matrix: ./invoke lock --update writes it"
    output(asdict(change), f"{change.as_text()}{hint if differs else ''}")
    return int(differs)
