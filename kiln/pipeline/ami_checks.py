"""Runs the AMI checks, `tests/ami`, against an instance that was booted from the AMI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kiln.base import overlay, processes
from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.paths import ROOT
from kiln.base.stopping import Stop
from kiln.cloud.machine import Machine
from kiln.cloud.target import Target
from kiln.facts import instances, table

Outcome = Literal["passed", "failed", "skipped"]

# pytest's exit statuses 0 and 1 mean that all checks ran.
_RAN = (0, 1)
_NOTHING_TO_RUN = 5


# Plugins that no check uses take a third of pytest's time here: the last two search all objects,
# five times, for what a check may have left.
UNUSED_PLUGINS = ("xdist", "hypothesispytest", "unraisableexception", "threadexception")


@dataclass(frozen=True)
class Check:
    """One check and how it ended; `message` says why it failed or was skipped."""

    name: str
    file: str
    outcome: Outcome
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Verdict:
    """All checks of one instance."""

    checks: tuple[Check, ...]

    def count(self, outcome: Outcome) -> int:
        """The number of checks with this outcome."""
        return sum(check.outcome == outcome for check in self.checks)

    @property
    def passed(self) -> bool:
        """Did no check fail and at least one pass? If all were skipped, the run has not passed."""
        return self.count("failed") == 0 and self.count("passed") > 0


def expectations(
    recipe: dict[str, Any],
    instance_type: str,
    target: Target,
    image: dict[str, Any],
    *,
    own_kernel: bool = False,
) -> dict[str, Any]:
    """What the checks expect of the machine: the recipe, and the instance type's hardware."""
    kind = instances().get(instance_type)
    gpu = None
    if kind:
        gpu = {
            "count": kind.gpu_count,
            "name": kind.product,
            "nvswitch": kind.nvswitch,
            "nvlsm": kind.nvlsm,
            "prefers": kind.prefers,
            "efa": kind.efa_interfaces,
            "mig": kind.mig,
            "clocks": kind.application_clocks,
        }
    return {
        "recipe": recipe,
        "instance_type": instance_type,
        "gpu": gpu,
        "target": target.kind,
        "own_kernel": own_kernel,
        "boot_budget": table("boot") if own_kernel else None,
        "ami": image,
        "needs_cluster": units_that_need_a_cluster(recipe["flavor"]),
    }


def units_that_need_a_cluster(flavor: str) -> list[str]:
    """The units of the parent that fail on an instance without a cluster, as the checked one is."""
    entry = table("distros")["flavors"].get(flavor, {})
    units: list[str] = entry.get("needs_cluster", [])
    return units


def require_match(keyword: str | None) -> None:
    """Refuse a `-k` that chooses no check, and overlays with mistakes, before anything is booted.

    Raises KilnError (exit status 2) with the files' names, or with pytest's words for what is not
    an expression.
    """
    overlay.overlays()
    if keyword is None:
        return
    status, lines = _collected("-k", keyword)
    if status == _NOTHING_TO_RUN:
        files = {Path(line.split("::")[0]).stem for line in _collected()[1] if "::" in line}
        hint = did_you_mean(keyword, {name.removeprefix("test_") for name in files})
        raise KilnError(f"no check, nor its file, has {keyword!r} in its name", hint=hint)
    if status != 0:
        raise KilnError(f"-k {keyword!r}: {lines[-1].removeprefix('ERROR: ')}")


def _collected(*arguments: str) -> tuple[int, list[str]]:
    """pytest's exit status, and its lines: one for each check that it would run."""
    done = subprocess.run(
        [*_pytest(), "-o", "addopts=", "--collect-only", "-q", *arguments, *_folders()],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
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
) -> Verdict:
    """Run the checks against a machine: `tests`, otherwise those of the checkout and its overlays.

    `keyword` is pytest's -k. The JUnit file and the log are kept in `folder`.

    Raises KilnError (exit status 1) if they did not all run, so that there is no verdict, or (2)
    if the image has no check with that keyword, and StoppedError as soon as `stop` is set.
    """
    expect_file = folder / "expect.json"
    expect_file.write_text(json.dumps(expected, indent=2) + "\n")
    junit = folder / "checks.junit.xml"
    junit.unlink(missing_ok=True)
    command = [
        *_pytest(),
        "-rs",
        f"--hosts=ssh://{machine.user}@{machine.address}",
        f"--ssh-config={machine.ssh_config}",
        f"--junitxml={machine.folder / junit.name}",
        *(("-k", keyword) if keyword else ()),
        *_folders(tests),
    ]
    environment = {
        **os.environ,
        **processes.run_environment(machine.run_id),
        "KILN_EXPECT": str(expect_file),
    }
    output = []
    with (
        processes.start(command, ROOT, environment) as process,
        processes.ending(process, stop),
    ):
        for line in process.stdout or ():
            output.append(line)
            on_line(line.rstrip("\n"))
    (folder / "checks.log").write_text("".join(output), encoding="utf-8")
    stop.check()
    if keyword and process.returncode == _NOTHING_TO_RUN:
        raise KilnError(f"no check of this image has {keyword!r} in its name")
    checks = read_junit(junit) if process.returncode in _RAN and junit.exists() else []
    failed = any(check.outcome == "failed" for check in checks)
    # Exit status and report must agree: a crash in between must not look like a pass.
    if not checks or failed != (process.returncode != 0):
        lines = [line.strip() for line in output if line.strip()]
        raise operation_failed(
            f"the checks did not run to their end: {lines[-1] if lines else 'no output'}",
            hint=f"see {folder / 'checks.log'}",
        )
    return Verdict(tuple(checks))


def _pytest() -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        *(f"-pno:{name}" for name in UNUSED_PLUGINS),
        # An overlay elsewhere must not make pytest look for its configuration there. Relative to
        # the checkout, since pytest expands a $ in these paths.
        *("--rootdir=.", "--config-file=pyproject.toml"),
    ]


def _folders(tests: Sequence[Path] | None = None) -> list[str]:
    # pytest reads [ in an argument as the beginning of a parameter.
    return [os.path.relpath(path, ROOT) for path in tests or overlay.ami_check_folders()]


def read_junit(path: Path) -> list[Check]:
    """The checks in a JUnit file, in the order in which they ran."""
    return [_check(case) for case in ET.parse(path).getroot().iter("testcase")]  # noqa: S314


def _check(case: ET.Element) -> Check:
    outcome: Outcome = "passed"
    message = ""
    for tag, meaning in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        element = case.find(tag)
        if element is not None:
            outcome = meaning  # type: ignore[assignment]
            message = (element.get("message") or element.text or "").strip()
    file = (case.get("classname") or "").split(".")[-1]
    name = (case.get("name") or "").removesuffix("]").split("[ssh://")[0]
    return Check(name, file, outcome, float(case.get("time") or 0), message)
