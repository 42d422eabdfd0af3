"""Tasks about Packer's input: render, validate, lock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import INVALID_INPUT, OPERATION_FAILED, KilnError, operation_failed
from kiln.cli.flags import JSON, NO_INSTALL
from kiln.cli.front import note, show, task

if TYPE_CHECKING:
    from kiln.base.findings import Finding
    from kiln.packer.lock_diff import LockDiff
    from kiln.packer.validate import Validation


@task(
    help={
        "check": "write nothing; fail if what is committed is stale",
        **JSON,
    }
)
def render(c: Context, check: bool = False, json: bool = False) -> int:
    """Write packer/: what all AMIs share, and a folder for each."""
    from kiln.matrix import load
    from kiln.packer.folders import write_all
    from kiln.packer.staleness import renewal, shown_packer, stale_files

    recipes = load.load_recipes()
    number = len(recipes)
    if check:
        stale = stale_files(recipes)
        if stale and not json:
            note("\n".join(stale))
            raise operation_failed(
                f"{shown_packer()}/ is stale", hint=f"run {renewal()}, and commit"
            )
        show(
            {"amis": number, "stale": stale},
            as_json=json,
            text=lambda _: f"{shown_packer()}/ matches the matrix ({number} AMIs)",
        )
        return OPERATION_FAILED if stale else 0
    written = write_all(recipes)
    show(
        {"amis": number, "written": written},
        as_json=json,
        text=lambda _: "\n".join(written) or f"nothing to change ({number} AMIs)",
    )
    return 0


@task(help={**NO_INSTALL, **JSON})
def validate(c: Context, no_install: bool = False, json: bool = False) -> int:
    """Hold what the matrix renders to the policy, `packer fmt -check` and `packer validate`."""
    from kiln.base import needs
    from kiln.matrix import load
    from kiln.packer import program
    from kiln.packer import validate as validation
    from kiln.packer.staleness import renewal, shown_packer, stale_files

    recipes = load.load_recipes()
    needs.ensure("packer", install=not no_install, say=note)
    results = validation.validate_recipes(recipes, program.find_packer())
    show([result.as_json() for result in results], as_json=json, text=lambda _: _lines(results))
    if stale_files(recipes):
        note(f"{shown_packer()}/ is stale, and was not judged: {renewal()} brings it up to date")
    return 0 if all(result.valid for result in results) else INVALID_INPUT


def _lines(results: list[Validation]) -> str:
    """A line for each row, each distinct finding once with its rows, and what was judged."""
    lines = []
    causes: dict[tuple[str, str], Finding] = {}
    for result in results:
        verdict = "valid" if result.valid else "INVALID"
        lines.append(f"{verdict}  {result.name}  {result.seconds:.1f} s")
        for finding in result.findings:
            key = (finding.rule, finding.message)
            rows = causes[key].rows if key in causes else ()
            names = tuple(dict.fromkeys([*rows, result.name]))
            causes[key] = replace(causes.get(key, finding), rows=names)
    count = sum(result.valid for result in results)
    judged = (
        f"{count} of {len(results)} AMIs have valid HCL; not judged here: whether their versions "
        "exist and work together (./invoke check)"
    )
    return "\n".join([*lines, *(str(finding) for finding in causes.values()), judged])


@task(
    help={
        "update": "write amis.lock.yaml",
        "from": "lock the hashes that a build in AWS saw: --from RUN-ID, a record or an AMI name",
        **JSON,
    }
)
def lock(c: Context, update: bool = False, from_: str | None = None, json: bool = False) -> int:
    """Compare what a bake downloads with amis.lock.yaml; --update writes the file."""
    from kiln.matrix import load
    from kiln.packer import lock as locking
    from kiln.packer.lock_diff import signed_line

    if update and from_:
        raise KilnError("lock takes --update or --from, not both", hint="run --update first")
    if from_:
        change = _locked_from(from_)
    else:
        recipes = load.load_recipes()
        change = (
            locking.update_lock(recipes)
            if update
            else locking.plan_lock(recipes, locking.load_lock())
        )
    signed = signed_line(locking.load_lock())
    differs = bool(change) and not (update or from_)
    hint = "\nthe lock file differs from the matrix: ./invoke lock --update writes it"
    text = f"{change.as_text()}\n{signed}{hint if differs else ''}"
    show(change.as_json(), as_json=json, text=lambda _: text)
    return int(differs)


def _locked_from(name: str) -> LockDiff:
    """Lock the hashes in the record of a build on AWS.

    Raises KilnError for a run in the lab or without an AMI, or a hash that is not the locked one.
    """
    from kiln.packer.seen_hashes import record_hashes
    from kiln.pipeline import records

    build = records.find_record(name)
    run = f"run {build.run_id}"
    if not build.versions:
        raise KilnError(
            f"{run} has no versions: it ended before its AMI was checked",
            hint="choose a run whose status is verified",
        )
    return record_hashes(build.versions["downloads"], note=build.image_note, when=run)
