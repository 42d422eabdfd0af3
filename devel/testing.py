"""`./invoke lint` and `./invoke test`: each check is a process, reported with its time."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

import psutil

from devel import code_lines, generate, links, packers, scripts
from kiln.base import needs
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cli.output import log
from lab.base import settings
from lab.daemon import host
from lab.rootfs import emulation

# Lab tests use labs of their own, not the user's: one for each process, from this index on. What
# runs beside them has others: a lab is not taken down while a run of somebody else's is in it.
_LAB_FOR_TESTS = 9
_LAB_BESIDE = 44
_LAB_FOR_UNIT_TESTS = 45
# More have no use: a file of tests runs in one process, and the longest would be last.
MOST_AT_ONCE = 12
# Of memory, for a lab with its tests and guests.
_OF_A_LAB = 1 << 30
KERNEL_LOG_TESTS = "tests/lab/test_xid_*.py"
# Files and folders of tests/unit that `./invoke test --quick` leaves out, each with about two
# seconds or more: they start many processes (./invoke, Packer, shells, other Pythons), have
# hundreds of cases, or search long for a counterexample.
_SLOW_FILES = """
add_a_distribution ami_checks bad_inputs builds catalogue catalogue_browser cli compat consume
contributing docs failure findings first_call generate hcl_injection iam interrupted_start json
lab_ec2 lab_prepare mig_apply mig_placement mig_properties overlay packer policy preflight
preflight_first_bakes printable program provisioner_failures provisioners record
recorded_h100_standin render rules runtime_fuzz scripts stack_template standin_nvidia_smi_commands
standin_nvidia_smi_daemons standin_nvidia_smi_formats standin_nvidia_smi_mig telemetry_bundle
telemetry_sources testing unconfirmed validate verify xid_cli xid_pythons
"""
SLOW = ("publish", *(f"test_{name}.py" for name in _SLOW_FILES.split()))
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Finished:
    """The result of a linter."""

    name: str
    ok: bool
    seconds: float
    output: str


def linters_as_json(linters: list[Finished]) -> dict[str, Any]:
    """What the linters found, as `./invoke lint --json` prints it."""
    return {
        "exit_status": int(not all(check.ok for check in linters)),
        "linters": [asdict(check) for check in linters],
    }


@dataclass
class Outcome:
    """What a run has found so far. pytest's report of a part is `PART.xml` in `reports`."""

    reports: Path
    linters: list[Finished] = field(default_factory=list)
    # Part → its exit status.
    parts: dict[str, int] = field(default_factory=dict)
    # What had to run and could not → why.
    not_run: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The whole outcome, as `./invoke test --json` prints it."""
        answer = linters_as_json(self.linters)
        status = answer["exit_status"] | int(bool(self.not_run))
        for part in self.parts.values():
            status |= part
        return {
            **answer,
            "exit_status": status,
            "parts": [self._part(name) for name in self.parts],
            "not_run": [{"part": name, "reason": reason} for name, reason in self.not_run.items()],
        }

    def skips(self) -> str:
        """Return the skipped tests by reason; empty when nothing was skipped."""
        groups: dict[str, list[str]] = {}
        for report in sorted(self.reports.glob("*.xml")):
            for test, reason in _skipped(_cases(report)).items():
                groups.setdefault(reason, []).append(test)
        if not groups:
            return ""
        count = sum(map(len, groups.values()))
        lines = [f"{count} {'test was' if count == 1 else 'tests were'} skipped:"]
        for reason, tests in groups.items():
            lines += [f"  {reason}", *(f"    {test}" for test in tests)]
        return "\n".join(lines)

    def _part(self, name: str) -> dict[str, Any]:
        """How the tests of a part ended."""
        cases = _cases(self.reports / f"{name}.xml")
        skipped = _skipped(cases)
        # A test whose end failed has two elements.
        failed: dict[str, str] = {}
        for case in cases:
            for part in case:
                if part.tag in ("failure", "error"):
                    failed.setdefault(_test_id(case), part.get("message", ""))
        return {
            "part": name,
            "exit_status": self.parts[name],
            "passed": len({_test_id(case) for case in cases} - failed.keys() - skipped.keys()),
            "failed": len(failed),
            "skipped": len(skipped),
            "failures": [{"test": test, "message": text} for test, text in failed.items()],
            "skips": [{"test": test, "reason": reason} for test, reason in skipped.items()],
        }


def _cases(report: Path) -> list[ElementTree.Element]:
    """The tests of a JUnit report; [] if pytest ended before writing it."""
    if not report.exists():
        return []
    return list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it


def _skipped(cases: list[ElementTree.Element]) -> dict[str, str]:
    """Skipped tests → the reason."""
    found = ((_test_id(case), case.find("skipped")) for case in cases)
    return {test: skip.get("message", "") for test, skip in found if skip is not None}


def _test_id(case: ElementTree.Element) -> str:
    """A test's id for pytest; only its name where a file could not be imported."""
    file, name = case.get("file", ""), case.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    groups = case.get("classname", "").removeprefix(module).strip(".").split(".")
    return "::".join(filter(None, [file, *groups, name])) if file else name


def lint(*, install: bool = True) -> list[Finished]:
    """Run all linters in parallel, and print what they found."""
    needs.ensure("lint", "packer", install=install, say=log)
    python = [sys.executable, "-m"]
    files = scripts.committed()
    shell = scripts.of_language("shell", files)
    commands = {
        # The slowest first, and split in two, to keep both cores busy.
        "shellcheck (1/2)": ["shellcheck", "-x", *shell[::2]],
        "shellcheck (2/2)": ["shellcheck", "-x", *shell[1::2]],
        "mypy --strict": [*python, "mypy"],
        **_ruff(files, "--no-cache"),
        "import-linter": [_tool("lint-imports"), "--no-cache"],
    }
    finished = side_by_side(commands)
    finished.append(_checked("generated files", generate.stale))
    finished.append(_checked("links", _broken_links))
    _report(finished)
    print(code_lines.table(), flush=True)
    return finished


def quick(*, only: str | None = None) -> dict[str, Any]:
    """Run ruff, mypy and the fast unit tests, import tests/lab; returns the outcome.

    `only` selects tests by name, and leaves the linters out.
    """
    python = [sys.executable, "-m"]
    chosen = ["-k", only] if only else []
    left_out = [*(f"--ignore=tests/unit/{name}" for name in SLOW), "-m", "not slow"]
    linters = {
        "mypy --strict": [*python, "mypy"],
        **_ruff(scripts.committed()),
        # They are not run, but an import that fails is seen.
        "tests/lab imports": [*python, "pytest", "--collect-only", "-q", "tests/lab"],
    }
    with tempfile.TemporaryDirectory(prefix="kiln-test-") as folder:
        outcome = Outcome(Path(folder), [] if only else _report(side_by_side(linters)))
        _unit_tests(outcome, [*left_out, *chosen])
        print(outcome.skips(), flush=True)
        left = f"tests/lab, the other linters, and {len(SLOW)} files of tests/unit"
        log(f"left out by --quick: {left}")
        return _answer(outcome, only)


def test(*, only: str | None = None, lab: bool = True) -> dict[str, Any]:
    """Run linters, unit tests, lab tests; returns the outcome. `only` selects tests by name."""
    needs.ensure("lint", "packer", "ssh", "tests", install=True, say=log)
    browser_if_there_is_one()
    log(f"Packer of this run: {packers.in_words()}")
    chosen = ["-k", only] if only else []
    linters: Callable[[], list[Finished]] = list if only else lint
    with tempfile.TemporaryDirectory(prefix="kiln-test-") as folder:
        outcome = Outcome(Path(folder))
        if lab:
            _all(outcome, chosen, linters)
        else:
            outcome.linters = linters()
            _unit_tests(outcome, chosen)
        print(outcome.skips(), flush=True)
        return _answer(outcome, only)


def _answer(outcome: Outcome, only: str | None) -> dict[str, Any]:
    """The outcome as data. Raises KilnError (exit status 2) if `only` has chosen no test at all."""
    answer = outcome.as_json()
    ran = any(part[how] for part in answer["parts"] for how in ("passed", "failed", "skipped"))
    if only and not ran and not answer["exit_status"]:
        raise KilnError(
            f"no test was run: none has {only!r} in its name",
            hint="-k takes a part of a test's or a file's name, or an expression: -k 'mig and not "
            "lab'",
        )
    return answer


def browser_if_there_is_one() -> None:
    """Install the browser; where it cannot be had, its tests are skipped and nothing else."""
    try:
        needs.ensure("browser", install=True, say=log)
    except KilnError as error:
        log(f"skipping browser tests: {error}")


def _all(outcome: Outcome, chosen: list[str], linters: Callable[[], list[Finished]]) -> None:
    """Linters, unit tests and lab tests side by side as far as they may be.

    The first thing shown is what the linters found.
    """
    try:
        host.can_run()
    except KilnError as error:
        outcome.linters = linters()
        _unit_tests(outcome, chosen)
        outcome.not_run["tests/lab"] = str(error)
        print(f"NOT RUN: tests/lab: {error}", flush=True)
        return
    other = "arm64" if emulation.host_arch() == "x86_64" else "x86_64"
    needs.ensure("lab", f"emulate_{other}", install=True, say=log)
    with _Background(outcome) as background:
        # Every guest reads the one kernel's log, and the AMI's checks write to it: the tests that
        # count what is in it run while no AMI is checked. They mostly wait: beside the linters.
        background.start("kernel-log", [*map(str, sorted(ROOT.glob(KERNEL_LOG_TESTS))), *chosen])
        outcome.linters = linters()
        # By groups: the tests that open a browser share one.
        several = ["-n", str(_processes()), "--dist", "loadgroup"]
        background.start("unit", ["tests/unit", *several, *chosen], lab=_LAB_FOR_UNIT_TESTS)
        background.start("beside", [*_files_beside(), "-m", "beside", *chosen], lab=_LAB_BESIDE)
        background.finish("kernel-log")
        several = ["-n", str(labs_at_once()), "--no-loadscope-reorder"]
        in_labs = ["-m", "not beside", f"--ignore-glob={KERNEL_LOG_TESTS}", *several, *chosen]
        in_labs = ["tests/lab", *in_labs]
        report = outcome.reports / "labs.xml"
        outcome.parts["labs"] = run_pytest(report, in_labs)
        background.finish("unit")
        background.finish("beside")


def labs_at_once() -> int:
    """How many labs are tested side by side here. They wait for guests half of the time."""
    fit = psutil.virtual_memory().available // _OF_A_LAB
    return max(1, min(_processes() + 1, fit))


def _processes() -> int:
    """How many processes of tests this machine has cores for."""
    return min(cores(), MOST_AT_ONCE)


def _files_beside() -> list[str]:
    """The files with tests marked `beside`: to collect all of tests/lab takes seconds."""
    files = sorted((ROOT / "tests" / "lab").rglob("test_*.py"))
    return [str(file) for file in files if "mark.beside" in file.read_text(encoding="utf-8")]


class _Background:
    """Runs of pytest beside each other; what each one printed is shown when it is finished."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._stack = contextlib.ExitStack()
        self._runs: dict[str, tuple[Future[int], TextIO]] = {}

    def __enter__(self) -> _Background:
        self._pool = self._stack.enter_context(ThreadPoolExecutor())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, name: str, arguments: list[str], lab: int = _LAB_FOR_TESTS) -> None:
        """Start pytest with these arguments; its report is `name`.xml."""
        output = self._stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        report = self._outcome.reports / f"{name}.xml"
        run = self._pool.submit(run_pytest, report, arguments, output, lab)
        self._runs[name] = (run, output)

    def finish(self, name: str) -> None:
        """Wait until that run is over and show what it printed."""
        run, output = self._runs[name]
        self._outcome.parts[name] = run.result()
        output.seek(0)
        print(output.read(), flush=True)


def _unit_tests(outcome: Outcome, arguments: list[str]) -> None:
    chosen = ["tests/unit", "-n", str(_processes()), *arguments]
    report = outcome.reports / "unit.xml"
    outcome.parts["unit"] = run_pytest(report, chosen, lab=_LAB_FOR_UNIT_TESTS)


def run_pytest(
    report: Path,
    arguments: list[str],
    output: TextIO | None = None,
    lab: int = _LAB_FOR_TESTS,
) -> int:
    """Run pytest; its exit status. Its JUnit report goes into `report`.

    `lab` is the index of the first lab that its tests use. KILN_LAB_INDEX moves all of them, so
    that two runs on one machine do not meet.
    """
    index = lab
    if "KILN_LAB_INDEX" in os.environ:
        index += settings.current().index - _LAB_FOR_TESTS
    # Never round to the first labs, which are users'.
    if index >= settings.LABS:
        index -= settings.LABS - _LAB_FOR_TESTS
    # PYTEST_ADDOPTS of the caller would decide which tests run.
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "KILN_LAB_INDEX": str(index)}
    # The tests start ./invoke hundreds of times, so Python must keep compiled files.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    # A report of this family says in which file a test is.
    family = ["--durations=5", "-o", "junit_family=xunit1"]
    status = subprocess.run(
        [sys.executable, "-m", "pytest", f"--junitxml={report}", *family, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        # Where print() goes: with --json that is stderr.
        stdout=output or sys.stdout,
        stderr=subprocess.STDOUT if output else None,
        check=False,
    ).returncode
    # 5 means that no test was run: with -k, the other folder may have it.
    return 0 if status == 5 and "-k" in arguments else status


def side_by_side(commands: dict[str, list[str]]) -> list[Finished]:
    with ThreadPoolExecutor(max_workers=cores()) as pool:
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


def _checked(name: str, problems: Callable[[], list[str]]) -> Finished:
    started = time.monotonic()
    found = problems()
    return Finished(name, not found, time.monotonic() - started, "\n".join(found))


def _broken_links() -> list[str]:
    return [line for page in links.pages(ROOT) for line in links.broken(page, ROOT)]


def _ruff(files: list[str], *flags: str) -> dict[str, list[str]]:
    python = scripts.of_language("python", files)
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
    for quota in _quotas(cgroups):
        allowed = min(allowed, math.ceil(quota))
    return max(1, allowed)


def _quotas(cgroups: Path) -> list[float]:
    """The limits, in cores: of version 2 in one file, `max` without one; of version 1 in two, -1
    without one. (Linux, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst)"""
    quotas = []
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroups / "cpu.max").read_text().split()
        quotas.append(float(quota) / float(period) if quota != "max" else math.inf)
    with contextlib.suppress(OSError, ValueError):
        quota = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text()
        quotas.append(float(quota) / float(period) if float(quota) > 0 else math.inf)
    return [quota for quota in quotas if math.isfinite(quota)]
