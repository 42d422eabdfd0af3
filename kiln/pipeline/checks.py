"""Runs the AMI checks, `tests/ami`, against an instance that was booted from the AMI."""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kiln.base import overlay, processes
from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.paths import ROOT
from kiln.base.processes import Stop
from kiln.base.recipe import Recipe
from kiln.cloud.instance import Machine
from kiln.facts import instances, table

Outcome = Literal["passed", "failed", "skipped"]

# What pytest says that it will run.
_TO_RUN = re.compile(r"^collected (\d+) items?(?: / (\d+) deselected)?", re.MULTILINE)
# pytest's exit statuses 0 and 1 mean that all checks ran.
_RAN = (0, 1)
_NOTHING_TO_RUN = 5

# Plugins that no check uses take a third of pytest's time here: the last two search all objects,
# five times, for what a check may have left.
UNUSED_PLUGINS = ("xdist", "hypothesispytest", "unraisableexception", "threadexception")

# How the variables begin that change which checks run, or whether an assertion does anything.
_NOT_FOR_CHECKS = tuple(
    "PYTEST_ PYTHON PY_COLORS FORCE_COLOR NO_COLOR CLICOLOR KILN_EXPECT".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Check:
    """One check and how it ended; `message` says why it failed or was skipped."""

    name: str
    file: str
    outcome: Outcome
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Checks:
    """The AMI checks of one instance: the count of each outcome, and each check."""

    passed: int
    failed: int
    skipped: int
    checks: tuple[Check, ...]

    @staticmethod
    def counted(checks: Sequence[Check]) -> Checks:
        """Return these checks, counted."""
        count = Counter(check.outcome for check in checks)
        return Checks(count["passed"], count["failed"], count["skipped"], tuple(checks))

    @property
    def succeeded(self) -> bool:
        """Return True if none failed and one passed: if all were skipped, nothing was checked."""
        return self.failed == 0 and self.passed > 0

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def expectations(
    recipe: Recipe,
    instance_type: str,
    target_kind: str,
    *,
    own_kernel: bool = False,
    exercise: bool = True,
    reboot: bool = False,
    efa_attached: bool = False,
    restart: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what the checks expect of the machine: the recipe, and the instance type's hardware.

    Checks that act on the machine run only with `exercise`. With `reboot` the machine is rebooted
    after them, and looked at again. `efa_attached`: it was launched with an EFA interface.
    `restart` (instance_id, region, ssh_interface): it is stopped, started and looked at again.
    """
    kind, flavors = instances().get(instance_type), table("distros")["flavors"]
    gpu = kind and {
        "count": kind.gpu_count,
        "name": kind.product,
        "nvswitch": kind.nvswitch,
        "nvlsm": kind.nvlsm,
        "prefers": kind.prefers,
        "module_options": kind.module_options,
        "efa": kind.efa_interfaces,
        "mig": kind.mig,
        "clocks": kind.application_clocks,
    }
    return {
        "recipe": recipe.to_dict(),
        "instance_type": instance_type,
        "gpu": gpu or None,
        "target": target_kind,
        "exercise": exercise,
        "reboot": reboot,
        "efa_attached": efa_attached,
        "restart": restart,
        "own_kernel": own_kernel,
        "boot_budget": table("boot"),
        # The parent's units that fail on an instance without a cluster.
        "needs_cluster": flavors.get(recipe.flavor, {}).get("needs_cluster", []),
    }


def require_match(keyword: str | None) -> None:
    """Refuse a `-k` that chooses no check, and overlays with mistakes, before a boot."""
    overlay.overlays()
    if keyword is None:
        return
    status, lines = _collected("-k", keyword, *_folders())
    if status == _NOTHING_TO_RUN:
        every = _collected(*_folders())[1]
        files = {Path(line.split("::")[0]).stem for line in every if "::" in line}
        hint = did_you_mean(keyword, {name.removeprefix("test_") for name in files})
        raise KilnError(f"no check, nor its file, has {keyword!r} in its name", hint=hint)
    if status != 0:
        raise KilnError(f"-k {keyword!r}: {lines[-1].removeprefix('ERROR: ')}")


def _collected(*arguments: str) -> tuple[int, list[str]]:
    """Return pytest's exit status, and its lines: one for each check that it would run."""
    command = [*_pytest(), "--collect-only", "-q", "--disable-warnings", *arguments]
    done = processes.run(command, cwd=ROOT, env=_environment())
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def run_checks(
    machine: Machine,
    expected: dict[str, Any],
    folder: Path,
    *,
    stop: Stop,
    on_line: Callable[[str], None] = lambda line: None,
    tests: Sequence[Path] | None = None,
    keyword: str | None = None,
) -> Checks:
    """Run the checks against a machine: `tests`, otherwise those of the checkout and its overlays.

    `keyword` is pytest's -k. The JUnit file and the log are kept in `folder`. All that pytest
    collects for this image must have run; otherwise there is no verdict, but an error.
    """
    expect_file = folder / "expect.json"
    expect_file.write_text(json.dumps(expected, indent=2) + "\n")
    junit = folder / "checks.junit.xml"
    junit.unlink(missing_ok=True)
    command = [
        *(*_pytest(), "-rs", f"--junitxml={machine.folder / junit.name}"),
        f"--hosts=ssh://{machine.user}@{machine.address}",
        f"--ssh-config={machine.ssh_config}",
        *(("-k", keyword) if keyword else ()),
        *_folders(tests),
    ]
    own = {**processes.run_environment(machine.run_id), "KILN_EXPECT": str(expect_file)}
    output = []
    with (
        processes.start(command, ROOT, _environment() | own) as process,
        processes.ending(process, stop),
    ):
        for line in process.stdout or ():
            output.append(line)
            on_line(line.rstrip("\n"))
    log = "".join(output)
    (folder / "checks.log").write_text(log, encoding="utf-8")
    stop.check()
    if keyword and process.returncode == _NOTHING_TO_RUN:
        raise KilnError(f"no check of this image has {keyword!r} in its name")
    finished = process.returncode in _RAN and junit.exists()
    done = Checks.counted(read_junit(junit) if finished else [])
    found, count = _TO_RUN.search(log), len(done.checks)
    to_run = int(found[1]) - int(found[2] or 0) if found else 0
    # Exit status, report and collection must agree: a crash, or checks that were left out, must not
    # look like a pass.
    if count != to_run or (done.failed > 0) != (process.returncode != 0):
        last = (log.strip() or "no output").splitlines()[-1].strip()
        raise operation_failed(
            f"the checks did not run to their end ({count} of {to_run}): {last}",
            hint=f"see {folder / 'checks.log'}",
        )
    return done


def _environment() -> dict[str, str]:
    """Return the caller's environment without what would decide the verdict."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_NOT_FOR_CHECKS)}


def _pytest() -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        *(f"-pno:{name}" for name in UNUSED_PLUGINS),
        # An overlay elsewhere must not make pytest look for its configuration there. Relative to
        # the checkout, since pytest expands a $ in these paths.
        *("--rootdir=.", "--config-file=pyproject.toml"),
        *("-o", "addopts=", "--color=no", "--strict-markers", "--strict-config"),
        *("-p", "no:cacheprovider"),
    ]


def _folders(tests: Sequence[Path] | None = None) -> list[str]:
    # pytest reads [ in an argument as the beginning of a parameter.
    return [os.path.relpath(path, ROOT) for path in tests or overlay.ami_check_folders()]


def read_junit(path: Path) -> list[Check]:
    """Return the checks in a JUnit file, in the order in which they ran."""
    cases = ET.parse(path).getroot().iter("testcase")  # noqa: S314
    # One that pytest left in the middle has no name.
    return [_check(case) for case in cases if case.get("name")]


def _check(case: ET.Element) -> Check:
    outcome: Outcome = "passed"
    message = ""
    for tag in ("skipped", "failure", "error"):
        element = case.find(tag)
        if element is not None:
            outcome = "skipped" if tag == "skipped" else "failed"
            message = (element.get("message") or element.text or "").strip()
    file = (case.get("classname") or "").split(".")[-1]
    name = (case.get("name") or "").removesuffix("]").split("[ssh://")[0]
    return Check(name, file, outcome, float(case.get("time") or 0), message)
