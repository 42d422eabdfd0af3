"""Tasks for developers of AMI Kiln: test, lint, bench, generate, pictures."""

from __future__ import annotations

from invoke import Context

from kiln.cli.flags import JSON, NO_INSTALL
from kiln.cli.front import note, task


@task(
    help={
        "k": "only tests whose name contains this: -k matrix",
        "no-lab": "leave out tests/lab",
        "quick": "unit tests without a lab, Packer or long searches: within a minute",
        "all": "instead, the campaign: builds killed at any moment, failing calls and commands, "
        "bad input, and the tests that have a long form in it",
        "minutes": "with --all: how long the campaign lasts: --minutes 60",
        "part": "with --all: only these parts of it: --part kills,faults",
    }
)
def test(
    c: Context,
    k: str | None = None,
    no_lab: bool = False,
    quick: bool = False,
    all: bool = False,  # noqa: A002 - the flag is --all
    minutes: int = 15,
    part: str | None = None,
) -> int:
    """Run the linters, the unit tests, and the lab's tests on real guests."""
    from devel import testing

    if quick:
        return testing.quick(only=k)
    if all:
        from devel.campaign import run

        return run.campaign(minutes, note, part)
    return testing.test(only=k, lab=not no_lab)


@task(help=NO_INSTALL)
def lint(c: Context, no_install: bool = False) -> int:
    """ruff, mypy --strict, import-linter, shellcheck, the docs' links, stale generated files."""
    from devel import testing

    return testing.lint(install=not no_install)


@task(help={"check": "write nothing; fail if what is committed is stale"})
def generate(c: Context, check: bool = False) -> int:
    """Write the generated files that are committed: schemas, policy, catalogues, packer/."""
    from devel import generate as generating

    return generating.generate(check_only=check)


@task(help={"site": "a folder that ./invoke catalogue made: --site build/catalogue"})
def pictures(c: Context, site: str = "build/catalogue") -> None:
    """Screenshots of a catalogue for the docs: docs/images/catalogue-….png."""
    from pathlib import Path

    from devel.pictures import take_pictures

    note("\n".join(map(str, take_pictures(Path(site)))))


@task(
    help={
        "what": "pipeline, first, lab, xid, mig or publish: --what mig",
        "against": "a commit that --what first also measures: --against main",
        **JSON,
    }
)
def bench(
    c: Context, what: str = "pipeline", against: str | None = None, json: bool = False
) -> int:
    """Speed, as ratios taken in one run: ./invoke bench, ./invoke bench --what xid"""
    from devel import bench as benches

    return benches.run(what, against=against or "", as_json=json)
