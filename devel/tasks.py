"""Tasks for developers of AMI Kiln: test, lint, bench, generate, pictures."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from invoke import Context

from kiln.cli.flags import JSON, NO_INSTALL
from kiln.cli.front import note, show, task, tell


@task(
    help={
        "k": "only tests whose name contains this: -k matrix",
        "no-lab": "leave out tests/lab",
        "quick": "unit tests without a lab, Packer or long searches: within a minute",
        "kills": "instead, end builds at any moment by SIGKILL, SIGINT and SIGTERM: nothing may be "
        "left",
        "minutes": "with --kills: how long: --minutes 60",
        **JSON,
    }
)
def test(
    c: Context,
    k: str | None = None,
    no_lab: bool = False,
    quick: bool = False,
    kills: bool = False,
    minutes: int = 15,
    json: bool = False,
) -> int:
    """Run the linters, the unit tests, and the lab's tests on real guests."""
    from devel import testing

    with _printing(as_json=json):
        if quick:
            answer = testing.quick(only=k)
        elif kills:
            from devel import kills as killing

            answer = killing.kills(minutes, note)
        else:
            answer = testing.test(only=k, lab=not no_lab)
    return _ended(answer, as_json=json)


@task(help={**NO_INSTALL, **JSON})
def lint(c: Context, no_install: bool = False, json: bool = False) -> int:
    """ruff, mypy --strict, import-linter, shellcheck, the docs' links, stale generated files."""
    from devel import testing
    from devel.outcome import linters_as_json

    with _printing(as_json=json):
        answer = linters_as_json(testing.lint(install=not no_install))
    return _ended(answer, as_json=json)


def _printing(*, as_json: bool) -> contextlib.AbstractContextManager[object]:
    """Where linters and pytest print: for a program, stdout has the outcome and nothing else."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _ended(answer: dict[str, Any], *, as_json: bool) -> int:
    """The exit status; for a program, the outcome on stdout. A person has read it already."""
    if as_json:
        show(answer, as_json=True, text=str)
    return int(answer["exit_status"])


@task(help={"check": "write nothing; fail if what is committed is stale", **JSON})
def generate(c: Context, check: bool = False, json: bool = False) -> int:
    """Write the generated files that are committed: schemas, policy, catalogues, packer/."""
    from devel import generate as generating

    return generating.generate(check_only=check, as_json=json)


@task(help={"site": "a folder that ./invoke catalogue made: --site build/catalogue", **JSON})
def pictures(c: Context, site: str = "build/catalogue", json: bool = False) -> None:
    """Screenshots of a catalogue for the docs: docs/images/catalogue-….png."""
    from pathlib import Path

    from devel.pictures import take_pictures

    files = [str(path) for path in take_pictures(Path(site))]
    tell({"written": files}, as_json=json, text="\n".join(files))


@task(help={"first": "instead, the first build in a fresh clone", **JSON})
def bench(c: Context, first: bool = False, json: bool = False) -> int:
    """Speed of the pipeline, mostly as ratios taken in one run."""
    from devel import bench as benches

    return benches.run(first=first, as_json=json)
