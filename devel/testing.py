"""`./invoke lint` and `./invoke test`: each check is a process, reported with its time."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import psutil

from devel import changed, code_lines, generate, links, packers, prose, scripts
from kiln.base import needs, processes
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cli.output import log
from lab.base import settings
from lab.daemon import host
from lab.rootfs import emulation

# Tests use labs of their own, not the user's: tests/lab one for each process, from this index on.
_LAB_FOR_TESTS = 9
_LAB_FOR_UNIT_TESTS = 45
# More have no use: a file of tests runs in one process, and the longest would be last.
MOST_AT_ONCE = 12
# Of memory, for a lab with its tests and guests.
_OF_A_LAB = 1 << 30
_CGROUPS = Path("/sys/fs/cgroup")
# The exit status of a pytest that found no test.
_NONE = 5


@dataclass(frozen=True)
class Finished:
    """The result of a linter."""

    name: str
    ok: bool
    seconds: float
    output: str


def linters_dict(linters: list[Finished]) -> dict[str, Any]:
    """Return the linters' findings, as `./invoke lint --json` prints it."""
    return {
        "exit_status": int(not all(check.ok for check in linters)),
        "linters": [asdict(check) for check in linters],
    }


def lint(*, install: bool = True) -> list[Finished]:
    """Run all linters in parallel, and print what they found."""
    needs.ensure("lint", install=install, say=log)
    packers.ensure(install=install)
    python = [sys.executable, "-m"]
    files = scripts.committed()
    shell = scripts.files_in_language("shell", files)
    finished = side_by_side(
        {
            # The slowest first, and split in two, to keep both cores busy.
            "shellcheck (1/2)": ["shellcheck", "-x", *shell[::2]],
            "shellcheck (2/2)": ["shellcheck", "-x", *shell[1::2]],
            "mypy --strict": [*python, "mypy"],
            **_ruff(files, "--no-cache"),
            "import-linter": [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        }
    )
    finished.append(_checked("generated files", generate.stale))
    finished.append(_checked("links, English", _faulty_english))
    _report(finished)
    print(code_lines.table(), flush=True)
    return finished


def test(
    *, only: str | None = None, quick: bool = False, lab: bool = True, everything: bool = False
) -> dict[str, Any]:
    """Run linters and tests; what they found, as `./invoke test --json` prints it.

    `only` selects tests by name, and leaves the linters out. Raises KilnError (exit status 2) if it
    has chosen no test.
    """
    chosen = ["-k", only] if only else []
    not_run: dict[str, str] = {}
    if quick:
        linters = [] if only else _quick_linters()
        parts = {"unit": _unit_tests(["-m", "not slow", *chosen])}
        log("left out by --quick: tests/lab, the other linters, and tests marked slow")
    else:
        needs.ensure("lint", "ssh", "tests", install=True, say=log)
        packers.ensure()
        if everything:
            other = "arm64" if emulation.host_arch() == "x86_64" else "x86_64"
            needs.ensure(f"emulate_{other}", "own_kernel", install=True, say=log)
            browser_if_there_is_one()
        log(f"Packer of this run: {packers.in_words()}")
        chosen += [] if everything else ["-m", "not all"]
        if lab and (why := _why_no_lab()):
            not_run["tests/lab"] = why
        with_lab = lab and not not_run
        # The lab's tests wait for guests half of the time: the others run beside them.
        with ThreadPoolExecutor(1) as pool, tempfile.TemporaryFile("w+") as output:
            in_labs = pool.submit(_lab_tests, chosen, output) if with_lab else None
            linters = [] if only else lint()
            parts = {"unit": _unit_tests(chosen)}
            if in_labs:
                parts["lab"] = in_labs.result()
                output.seek(0)
                print(output.read(), flush=True)
    for part, why in not_run.items():
        print(f"NOT RUN: {part}: {why}", flush=True)
    if only and set(parts.values()) == {_NONE}:
        raise KilnError(
            f"no test was run: none has {only!r} in its name",
            hint="-k takes a part of a test's or a file's name, or an expression: -k 'mig and not "
            "lab'",
        )
    failed = [status for status in parts.values() if status and not (only and status == _NONE)]
    answer = linters_dict(linters)
    answer["exit_status"] |= int(bool(failed or not_run))
    return {**answer, "parts": parts, "not_run": not_run}


def test_changed() -> dict[str, Any]:
    """Run the fast unit tests that the changed files touch, and ruff and mypy."""
    files = changed.changed_files()
    near, far = changed.touched_tests(files)
    log(f"{len(files)} changed files touch {len(near) + len(far)} files of tests/unit")
    answer = linters_dict(_quick_linters())
    parts = {}
    if near:
        # One file for both cores.
        parts["next to the change"] = _unit_tests(["-m", "not all"], near, by="load")
    if far:
        parts["fast tests of what uses it"] = _unit_tests(["-m", "not slow and not all"], far)
    failed = [status for status in parts.values() if status not in (0, _NONE)]
    answer["exit_status"] |= int(bool(failed))
    return {**answer, "parts": parts, "not_run": {}}


def _quick_linters() -> list[Finished]:
    python = [sys.executable, "-m"]
    commands = {
        "mypy --strict": [*python, "mypy"],
        **_ruff(scripts.committed()),
        # They are not run, but an import that fails is seen.
        "tests/lab imports": [*python, "pytest", "--collect-only", "-q", "tests/lab"],
    }
    return _report(side_by_side(commands))


def browser_if_there_is_one() -> None:
    """Install the browser; where it cannot be had, its tests are skipped and nothing else."""
    try:
        needs.ensure("browser", install=True, say=log)
    except KilnError as error:
        log(f"skipping browser tests: {error}")


def _why_no_lab() -> str:
    """Return why this machine cannot run tests/lab; "" where it can, with all that they need."""
    try:
        host.can_run()
    except KilnError as error:
        return str(error)
    needs.ensure("lab", install=True, say=log)
    return ""


def _unit_tests(
    chosen: list[str], files: Sequence[str] = ("tests/unit",), by: str = "loadfile"
) -> int:
    # A file in one process: its tests share what they have set up.
    several = ["-n", str(_processes()), "--dist", by]
    return run_pytest([*files, *several, *chosen], lab=_LAB_FOR_UNIT_TESTS)


def _lab_tests(chosen: list[str], output: TextIO) -> int:
    several = ["-n", str(labs_at_once()), "--no-loadscope-reorder"]
    return run_pytest(["tests/lab", *several, *chosen], lab=_LAB_FOR_TESTS, output=output)


def labs_at_once() -> int:
    """Return the number of labs that are tested side by side here. They wait for guests half of the
    time."""
    fit = psutil.virtual_memory().available // _OF_A_LAB
    return max(1, min(_processes() + 1, fit))


def _processes() -> int:
    """Return the number of test processes that this machine has cores for."""
    return min(cores(), MOST_AT_ONCE)


def run_pytest(arguments: list[str], lab: int, output: TextIO | None = None) -> int:
    """Run pytest; its exit status.

    `lab` is the index of the first lab that its tests use. KILN_LAB_INDEX moves all of them, so
    that two runs on one machine do not meet.
    """
    index = lab
    if "KILN_LAB_INDEX" in os.environ:
        index += settings.current().index - _LAB_FOR_TESTS
    # Never round to the first labs, which are users'.
    if index >= settings.LABS:
        index -= settings.LABS - _LAB_FOR_TESTS
    # PYTEST_ADDOPTS of the caller would decide which tests run. The tests start ./invoke hundreds
    # of times, so Python must keep compiled files.
    dropped = ("PYTEST_", "PYTHONDONTWRITEBYTECODE")
    own = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rfEs", "--durations=5", *arguments],
        cwd=ROOT,
        env={**own, "KILN_LAB_INDEX": str(index)},
        stdin=subprocess.DEVNULL,
        # Where print() goes: with --json that is stderr.
        stdout=output or sys.stdout,
        stderr=subprocess.STDOUT if output else None,
        check=False,
    ).returncode


def side_by_side(commands: dict[str, list[str]]) -> list[Finished]:
    with ThreadPoolExecutor(max_workers=cores()) as pool:
        return list(pool.map(lambda item: _run(*item), commands.items()))


def _run(name: str, command: list[str]) -> Finished:
    started = time.monotonic()
    done = processes.run(command, cwd=ROOT)
    seconds = time.monotonic() - started
    return Finished(name, done.returncode == 0, seconds, (done.stdout + done.stderr).strip())


def _checked(name: str, problems: Callable[[], list[str]]) -> Finished:
    started = time.monotonic()
    found = problems()
    return Finished(name, not found, time.monotonic() - started, "\n".join(found))


def _faulty_english() -> list[str]:
    pages = links.pages(ROOT)
    found = [*prose.questions(ROOT), *prose.too_long(pages, ROOT)]
    for page in pages:
        found += [*links.broken(page, ROOT), *prose.problems(page, ROOT)]
    return found


def _ruff(files: list[str], *flags: str) -> dict[str, list[str]]:
    python = scripts.files_in_language("python", files)
    # Ruff finds files by suffix, and takes the others by name.
    chosen = [".", *(file for file in python if not file.endswith(".py"))]
    ruff = [sys.executable, "-m", "ruff"]
    return {
        "ruff": [*ruff, "check", *flags, *chosen],
        "ruff format": [*ruff, "format", "--check", *flags, *chosen],
    }


def _report(finished: list[Finished]) -> list[Finished]:
    for check in finished:
        verdict = "ok" if check.ok else "FAILED"
        print(f"{verdict:<7}{check.name:<18}{check.seconds:5.1f} s", flush=True)
        if not check.ok:
            print(check.output, flush=True)
    return finished


def cores(cgroups: Path = _CGROUPS) -> int:
    """The cores that the scheduler and the control group allow; 1 at least.

    A container's limit is not in `os.cpu_count`: with 2 of a machine's 64 cores, 64 processes would
    wait for each other until their tests' deadlines.
    """
    allowed = len(os.sched_getaffinity(0))
    # Version 2 has one file, `max` without a limit; version 1 two, -1 without one. (Linux,
    # Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst)
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with contextlib.suppress(OSError, ValueError):
            text = " ".join((cgroups / file).read_text() for file in files)
            quota, period = map(int, text.split())
            if quota > 0:
                allowed = min(allowed, math.ceil(quota / period))
    return max(1, allowed)
