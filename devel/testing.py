"""`lint` and `test`: the project's own checks, each a process, each with its time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TextIO

from devel import generate, links
from kiln.base import needs
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from lab import host

_SHELL = ("*.sh", "*.bash", "invoke", ".ci/run")
# Lab tests have a lab of their own, so that they leave the user's alone.
_LAB_FOR_TESTS = "9"
_TWO_LABS = ("-n", "2")
_OF_THE_KERNELS_LOG = "tests/lab/test_xid_*.py"


@dataclass(frozen=True)
class Finished:
    """How one check of the project ended."""

    name: str
    ok: bool
    seconds: float
    output: str


def lint(*, install: bool = True) -> int:
    """Run all linters side by side; the exit code."""
    needs.ensure("lint", "packer", install=install, say=_say)
    python = [sys.executable, "-m"]
    scripts = _shell_files()
    commands = {
        # The slowest first, and in halves, so that no core waits for the other.
        "shellcheck (1/2)": ["shellcheck", "-x", *scripts[::2]],
        "shellcheck (2/2)": ["shellcheck", "-x", *scripts[1::2]],
        "mypy --strict": [*python, "mypy"],
        "ruff": [*python, "ruff", "check", "--no-cache", "."],
        "ruff format": [*python, "ruff", "format", "--check", "--no-cache", "."],
    }
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        tools = list(pool.map(lambda item: _run(*item), commands.items()))
    return _report([*tools, _generated(), _links()])


def test(*, only: str | None = None, lab: bool = True) -> int:
    """Linters, unit tests, lab tests; the exit code. With `only`, just the tests named so."""
    needs.ensure("lint", "packer", "ssh", install=True, say=_say)
    code = 0 if only else lint()
    chosen = ["-k", only] if only else []
    if not lab:
        return code | _pytest(["tests/unit", "-n", str(os.cpu_count()), *chosen])
    try:
        host.can_run()
    except KilnError as error:
        code |= _pytest(["tests/unit", "-n", str(os.cpu_count()), *chosen])
        print(f"NOT RUN: tests/lab: {error}", flush=True)
        return code | 1
    needs.ensure("lab", install=True, say=_say)
    # Tests in the lab mostly wait: two labs at a time. What has to do with neither a lab nor the
    # kernel's log runs beside them, and is shown when it is done.
    beside = {"tests/unit": ["-n", "2", *chosen], "tests/lab": ["-m", "beside", *chosen]}
    in_labs = ["-m", "not beside", f"--ignore-glob={_OF_THE_KERNELS_LOG}", *_TWO_LABS, *chosen]
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in beside]
        running = [
            pool.submit(_pytest, [folder, *arguments], output)
            for (folder, arguments), output in zip(beside.items(), outputs, strict=True)
        ]
        code |= _pytest(["tests/lab", *in_labs])
        # Every guest reads the one kernel's log, and the AMI's checks write to it: these count
        # what is in it, so no AMI may be checked meanwhile.
        code |= _pytest([*map(str, sorted(ROOT.glob(_OF_THE_KERNELS_LOG))), *chosen])
        for one, output in zip(running, outputs, strict=True):
            code |= one.result()
            output.seek(0)
            print(output.read(), flush=True)
    return code


def _pytest(arguments: list[str], output: TextIO | None = None) -> int:
    environment = {**os.environ, "KILN_LAB_INDEX": os.environ.get("KILN_LAB_INDEX", _LAB_FOR_TESTS)}
    # The tests start ./invoke hundreds of times: compiled once, whatever this shell is set to.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "--durations=5", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        check=False,
    )
    # 5 is "no test was run": with -k the other folder may have it.
    return 0 if done.returncode == 5 and "-k" in arguments else done.returncode


def _run(name: str, command: list[str]) -> Finished:
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    took = time.monotonic() - started
    return Finished(name, done.returncode == 0, took, (done.stdout + done.stderr).strip())


def _generated() -> Finished:
    """Is what is generated and committed what it is made from says today?"""
    started = time.monotonic()
    stale = generate.stale()
    return Finished("generated files", not stale, time.monotonic() - started, "\n".join(stale))


def _links() -> Finished:
    started = time.monotonic()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    wrong = [line for page in pages for line in links.broken(page, ROOT)]
    return Finished("links", not wrong, time.monotonic() - started, "\n".join(wrong))


def _shell_files() -> list[str]:
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", *_SHELL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def _report(finished: list[Finished]) -> int:
    for one in finished:
        print(f"{'ok' if one.ok else 'FAILED':<7}{one.name:<18}{one.seconds:5.1f} s", flush=True)
        if not one.ok:
            print(one.output, flush=True)
    return int(not all(one.ok for one in finished))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
