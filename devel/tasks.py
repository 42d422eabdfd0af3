"""Tasks for developers of AMI Kiln: test, lint, bench, generate."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from kiln.cli.output import FORMAT, log, output
from kiln.cli.task import task


@task("Develop")
def test(
    k: str | None = None,
    no_lab: bool = False,
    quick: bool = False,
    changed: bool = False,
    all: bool = False,  # noqa: A002
    kills: bool = False,
    minutes: int = 15,
) -> int:
    """Run the linters, the unit tests and the lab's tests.

    ./invoke test --quick
    ./invoke test --changed

    k: only tests whose name contains this: -k matrix
    no_lab: leave out tests/lab
    quick: unit tests without a lab, Packer or long searches: half a minute
    changed: unit tests that the difference to the last commit touches: half a minute
    all: also what takes minutes, or another machine's software: each night, and before a release
    kills: kill builds at random moments and look for leftovers, instead of the tests
    minutes: with --kills: how long: --minutes 60
    """
    from devel import testing

    with _printing():
        if changed:
            answer = testing.test_changed()
        elif kills:
            from devel import kills as killing

            answer = killing.kills(minutes, log)
        else:
            answer = testing.test(only=k, quick=quick, lab=not no_lab, everything=all)
    return _ended(answer)


@task("Develop")
def lint(no_install: bool = False) -> int:
    """Run the linters and look for stale generated files."""
    from devel import testing

    with _printing():
        answer = testing.linters_dict(testing.lint(install=not no_install))
    return _ended(answer)


def _printing() -> contextlib.AbstractContextManager[object]:
    """Redirect the output of linters and pytest: for a program, stdout has the outcome and nothing
    else."""
    return contextlib.redirect_stdout(sys.stderr) if FORMAT.json else contextlib.nullcontext()


def _ended(answer: dict[str, Any]) -> int:
    """Return the exit status; for a program, print the outcome. A person has read it already."""
    output(answer)
    return int(answer["exit_status"])


@task("Develop")
def generate(check: bool = False) -> int:
    """Write the generated files that are committed.

    check: write nothing; fail if what is committed is stale
    """
    from devel import generate as generating

    return generating.generate(check_only=check)


@task("Develop")
def bench(first: bool = False) -> int:
    """Measure the speed of the pipeline.

    first: instead, the first build in a fresh clone
    """
    from devel import bench as benches
    from lab.daemon import cell

    if not first:
        cell.enter(start=True)

    return benches.run(first=first)
