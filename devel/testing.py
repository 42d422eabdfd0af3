"""`./invoke lint` and `./invoke test`: each check is a process, reported with its time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from devel import generate, links, skips
from kiln.base import needs
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cli.front import note
from lab import emulation, host

_SHELL = ("*.sh", "*.bash", "invoke", ".ci/run")
# Lab tests use a lab of their own, not the user's.
_LAB_FOR_TESTS = "9"
_TWO_LABS = ("-n", "2")
_OF_THE_KERNELS_LOG = "tests/lab/test_xid_*.py"
# Files of tests/unit that `./invoke test --quick` leaves out: they start many processes (./invoke,
# Packer, shells, other Pythons) or search for counterexamples.
SLOW = (
    "test_cli.py",
    "test_front.py",
    "test_iam.py",
    "test_mig_apply.py",
    "test_mig_glance.py",
    "test_mig_miniyaml.py",
    "test_mig_placement.py",
    "test_mig_properties.py",
    "test_packer.py",
    "test_provisioners.py",
    "test_standin_nvidia_smi_commands.py",
    "test_standin_nvidia_smi_mig.py",
    "test_stopping.py",
    "test_telemetry_bundle.py",
    "test_validate.py",
    "test_verify.py",
    "test_xid_cli.py",
    "test_xid_fuzz.py",
    "test_xid_hooks.py",
    "test_xid_pythons.py",
)


@dataclass(frozen=True)
class Finished:
    """The result of a linter."""

    name: str
    ok: bool
    seconds: float
    output: str


def lint(*, install: bool = True) -> int:
    """Run all linters in parallel; returns the exit status."""
    needs.ensure("lint", "packer", install=install, say=note)
    python = [sys.executable, "-m"]
    scripts = _shell_files()
    commands = {
        # The slowest first, and split in two, to keep both cores busy.
        "shellcheck (1/2)": ["shellcheck", "-x", *scripts[::2]],
        "shellcheck (2/2)": ["shellcheck", "-x", *scripts[1::2]],
        "mypy --strict": [*python, "mypy"],
        "ruff": [*python, "ruff", "check", "--no-cache", "."],
        "ruff format": [*python, "ruff", "format", "--check", "--no-cache", "."],
        "import-linter": [_tool("lint-imports"), "--no-cache"],
    }
    return _report([*_side_by_side(commands), _generated(), _links()])


def quick(*, only: str | None = None) -> int:
    """Run ruff, mypy and the fast unit tests; returns the exit status.

    `only` selects tests by name, and leaves the linters out.
    """
    python = [sys.executable, "-m"]
    chosen = ["-k", only] if only else []
    left_out = [f"--ignore=tests/unit/{name}" for name in SLOW]
    linters = {
        "mypy --strict": [*python, "mypy"],
        "ruff": [*python, "ruff", "check", "."],
        "ruff format": [*python, "ruff", "format", "--check", "."],
    }
    status = 0 if only else _report(_side_by_side(linters))
    with tempfile.TemporaryDirectory(prefix="kiln-test-") as folder:
        status |= _unit_tests(Path(folder), [*left_out, *chosen])
        _list_skips(Path(folder))
    note(f"left out by --quick: tests/lab, the other linters, and {len(SLOW)} files of tests/unit")
    return status


def test(*, only: str | None = None, lab: bool = True) -> int:
    """Run linters, unit tests, lab tests; returns the exit status. `only` selects tests by name."""
    needs.ensure("lint", "packer", "ssh", "tests", install=True, say=note)
    chosen = ["-k", only] if only else []
    with tempfile.TemporaryDirectory(prefix="kiln-test-") as folder:
        status = 0 if only else lint()
        status |= _tests(Path(folder), chosen) if lab else _unit_tests(Path(folder), chosen)
        _list_skips(Path(folder))
    return status


def _tests(reports: Path, chosen: list[str]) -> int:
    """Run unit tests and lab tests; their JUnit reports are written to `reports`."""
    try:
        host.can_run()
    except KilnError as error:
        _unit_tests(reports, chosen)
        print(f"NOT RUN: tests/lab: {error}", flush=True)
        return 1
    other = "arm64" if emulation.host_arch() == "x86_64" else "x86_64"
    needs.ensure("lab", f"emulate_{other}", install=True, say=note)
    # Tests in the lab mostly wait, so two labs run in parallel. Tests that use neither a lab nor
    # the kernel log run beside them; their output is printed at the end.
    beside = {
        "unit": ["tests/unit", "-n", "2", *chosen],
        "beside": ["tests/lab", "-m", "beside", *chosen],
    }
    in_labs = ["-m", "not beside", f"--ignore-glob={_OF_THE_KERNELS_LOG}", *_TWO_LABS, *chosen]
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in beside]
        running = [
            pool.submit(_pytest, reports / f"{name}.xml", arguments, output)
            for (name, arguments), output in zip(beside.items(), outputs, strict=True)
        ]
        status = _pytest(reports / "labs.xml", ["tests/lab", *in_labs])
        # All guests share the host's kernel log, and AMI checks write to it. These tests count its
        # records, so no AMI check may run at the same time.
        alone = [*map(str, sorted(ROOT.glob(_OF_THE_KERNELS_LOG))), *chosen]
        status |= _pytest(reports / "kernel-log.xml", alone)
        for run, output in zip(running, outputs, strict=True):
            status |= run.result()
            output.seek(0)
            print(output.read(), flush=True)
    return status


def _unit_tests(reports: Path, arguments: list[str]) -> int:
    return _pytest(reports / "unit.xml", ["tests/unit", "-n", str(os.cpu_count()), *arguments])


def _list_skips(reports: Path) -> None:
    """Print the skipped tests and what they need."""
    skipped = skips.as_text(skips.read(sorted(reports.glob("*.xml"))))
    if skipped:
        print(skipped, flush=True)


def _pytest(report: Path, arguments: list[str], output: TextIO | None = None) -> int:
    """Run pytest with a JUnit report in `report`; returns the exit status."""
    environment = {**os.environ, "KILN_LAB_INDEX": os.environ.get("KILN_LAB_INDEX", _LAB_FOR_TESTS)}
    # The tests start ./invoke hundreds of times, so Python must keep compiled files.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--junitxml={report}", "--durations=5", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        check=False,
    )
    # 5 means that no test was run: with -k, the other folder may have it.
    return 0 if done.returncode == 5 and "-k" in arguments else done.returncode


def _side_by_side(commands: dict[str, list[str]]) -> list[Finished]:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(lambda item: _run(*item), commands.items()))


def _tool(name: str) -> str:
    """The path of a program in .venv."""
    return str(Path(sys.executable).with_name(name))


def _run(name: str, command: list[str]) -> Finished:
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - started
    return Finished(name, done.returncode == 0, seconds, (done.stdout + done.stderr).strip())


def _generated() -> Finished:
    """Check that the committed generated files are current."""
    started = time.monotonic()
    stale = generate.stale()
    return Finished("generated files", not stale, time.monotonic() - started, "\n".join(stale))


def _links() -> Finished:
    started = time.monotonic()
    broken = [line for page in links.pages(ROOT) for line in links.broken(page, ROOT)]
    return Finished("links", not broken, time.monotonic() - started, "\n".join(broken))


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
    for check in finished:
        verdict = "ok" if check.ok else "FAILED"
        print(f"{verdict:<7}{check.name:<18}{check.seconds:5.1f} s", flush=True)
        if not check.ok:
            print(check.output, flush=True)
    return int(not all(check.ok for check in finished))
