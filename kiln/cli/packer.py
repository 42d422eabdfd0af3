"""Tasks about Packer's input: render, validate, lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import INVALID_INPUT, operation_failed
from kiln.cli.flags import JSON, NO_INSTALL
from kiln.cli.front import note, show, task

if TYPE_CHECKING:
    from kiln.packer.validate import Validation


@task(help={"check": "write nothing; fail if what is committed is stale"})
def render(c: Context, check: bool = False) -> None:
    """Write packer/<ami-name>/ for each row of the matrix."""
    from kiln.matrix import load
    from kiln.packer import render as rendering

    recipes = load.load_recipes()
    if check:
        stale = rendering.stale(recipes)
        if stale:
            note("\n".join(stale))
            raise operation_failed("packer/ is stale", hint="run ./invoke render, and commit")
        print(f"packer/ matches the matrix ({len(recipes)} AMIs)")
    else:
        changed = rendering.write_all(recipes)
        print("\n".join(changed) or f"nothing to change ({len(recipes)} AMIs)")


@task(help={**NO_INSTALL, **JSON})
def validate(c: Context, no_install: bool = False, json: bool = False) -> int:
    """Render, policy-check, `packer fmt -check` and `packer validate`, all rows in parallel."""
    from kiln.base import needs
    from kiln.matrix import load
    from kiln.packer import program
    from kiln.packer import validate as validation

    recipes = load.load_recipes()
    needs.ensure("packer", install=not no_install, say=note)
    results = validation.validate(recipes, program.find())
    show([result.as_json() for result in results], as_json=json, text=lambda _: _lines(results))
    return 0 if all(result.valid for result in results) else INVALID_INPUT


def _lines(results: list[Validation]) -> str:
    """A line for each row, its findings below it."""
    lines = []
    for result in results:
        verdict = "valid" if result.valid else "INVALID"
        lines.append(f"{verdict}  {result.name}  {result.seconds:.1f} s")
        lines += [f"  {finding}" for finding in result.findings]
    return "\n".join(lines)


@task(help={"update": "write amis.lock.yaml", **JSON})
def lock(c: Context, update: bool = False, json: bool = False) -> int:
    """Compare what a bake downloads with amis.lock.yaml; --update writes the file."""
    from kiln.matrix import load
    from kiln.packer import lock as locking

    recipes = load.load_recipes()
    change = locking.update(recipes) if update else locking.plan_lock(recipes, locking.load())
    show(change.as_json(), as_json=json, text=lambda _: change.as_text())
    return 0 if update or not change else 1
