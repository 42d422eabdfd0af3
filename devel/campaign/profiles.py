"""Runs the tests that have a long form in it: MIG on every row and for every pair, 10^6 inputs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from devel.campaign.world import deadline
from kiln.base.paths import ROOT

# Inputs of one run of the fuzz test, and of all.
_INPUTS, _ALL_INPUTS = 10_000, 1_000_000


@dataclass(frozen=True)
class Profile:
    """Tests, and what makes pytest run their long form."""

    name: str
    environment: Mapping[str, str]
    arguments: tuple[str, ...]


MIG_ROWS = Profile("MIG rows", {"KILN_MIG_ROWS": "all"}, ("tests/lab/test_mig_images.py",))
MIG_PAIRS = Profile(
    "MIG pairs",
    {"KILN_MIG_PAIRS": "all"},
    (
        "tests/lab/test_mig_guest.py",
        "tests/unit/test_mig_miniyaml.py",
        "tests/unit/test_mig_offline.py",
        "tests/unit/test_mig_placement.py",
        "tests/unit/test_mig_properties.py",
    ),
)
OWN_KERNEL = Profile("own kernel", {"KILN_OWN_KERNEL": "1"}, ("tests/lab/test_own_kernel.py",))


@dataclass
class Tests:
    """How the tests of a run ended."""

    passed: int = 0
    failed: int = 0
    not_tried: int = 0


def campaign(profile: Profile, minutes: float, say: Callable[[str], None]) -> Tests:
    """Run as many tests of a profile as begin within the minutes."""
    return _pytest(profile.arguments, profile.environment, deadline(minutes), say)


def fuzz(minutes: float, say: Callable[[str], None]) -> tuple[int, int, int]:
    """Give the programs of the image damaged input; inputs tried, all inputs, failed runs."""
    until = deadline(minutes)
    tried = failed = 0
    while tried < _ALL_INPUTS and time.monotonic() < until:
        given = {
            "KILN_FUZZ_INPUTS": str(_INPUTS),
            "KILN_FUZZ_SEED": str(random.randrange(1 << 30)),
        }
        ended = _pytest(("tests/unit/test_runtime_fuzz.py",), given, until, say)
        if not ended.passed + ended.failed:
            break
        tried += _INPUTS
        failed += ended.failed
    return tried, _ALL_INPUTS, failed


def _pytest(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    until: float,
    say: Callable[[str], None],
) -> Tests:
    with tempfile.TemporaryDirectory(prefix="kiln-profile-") as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "devel.campaign.until"),
                *("-p", "no:cacheprovider", f"--junitxml={report}", *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, **environment, "KILN_UNTIL": str(until)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        ended = count(report) if report.exists() else Tests()
    # Also when pytest could not collect the tests, or fails for a reason that is no test's.
    if done.returncode not in (0, 5):
        ended.failed = ended.failed or 1
        say(f"pytest {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    return ended


def count(report: Path) -> Tests:
    """The tests of a JUnit report."""
    ended = Tests()
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            ended.failed += 1
        elif skipped is None:
            ended.passed += 1
        else:
            ended.not_tried += 1
    return ended
