"""Runs the tests that have a long form in it: MIG on every row and for every pair, 10^6 inputs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from devel.campaign.book import Book
from devel.campaign.testbed import deadline, each
from kiln.base.paths import ROOT

# Inputs of one run of the fuzz test, and how many runs give 10^6.
_INPUTS, _RUNS = 50_000, 20
# The fuzz test writes each input to a file: in memory that takes half of the time.
_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class Profile:
    """Tests, and what makes pytest run their long form."""

    name: str
    environment: Mapping[str, str]
    arguments: tuple[str, ...]


MIG_ROWS = Profile("mig-rows", {"KILN_MIG_ROWS": "all"}, ("tests/lab/test_mig_images.py",))
MIG_PAIRS = Profile(
    "mig-pairs",
    {"KILN_MIG_PAIRS": "all"},
    (
        "tests/lab/test_mig_guest.py",
        "tests/unit/test_mig_miniyaml.py",
        "tests/unit/test_mig_offline.py",
        "tests/unit/test_mig_placement.py",
        "tests/unit/test_mig_properties.py",
    ),
)
OWN_KERNEL = Profile("own-kernel", {"KILN_OWN_KERNEL": "1"}, ("tests/lab/test_own_kernel.py",))
RUNTIMES = Profile(
    "runtimes",
    {"KILN_REAL_RUNTIMES": "1", "KILN_REAL_SLURM": "1", "KILN_REAL_UBUNTU": "1"},
    ("tests/lab/test_vendors.py", "tests/lab/test_slurm.py", "tests/lab/test_real_ubuntu.py"),
)
WORKERS = Profile("workers", {"KILN_WORKERS": "1"}, ("tests/lab/test_workers.py",))
KEYS = Profile("keys", {"KILN_SIGNING_KEYS": "all"}, ("tests/lab/test_signing_keys.py",))
WHOLE = (MIG_ROWS, MIG_PAIRS, OWN_KERNEL, RUNTIMES, WORKERS, KEYS)


@dataclass(frozen=True)
class Test:
    """How a test of a run ended; `failure` is what it reported."""

    name: str
    failure: str = ""
    skipped: bool = False


def campaign(
    profile: Profile, minutes: float, say: Callable[[str], None], book: Book
) -> tuple[int, int, int]:
    """Run as many tests of a profile as begin within the minutes: tried, failed, all."""
    passed = [name for name, result in book.results.items() if not result["found"]]
    environment = {**profile.environment, "KILN_PASSED": "\n".join(passed)}
    until = deadline(minutes)
    ended = _pytest(profile.arguments, environment, until, say)
    if passed and not ended:
        book.begin(passed)
        passed = []
        ended = _pytest(profile.arguments, profile.environment, until, say)
    for test in ended:
        if not test.skipped:
            book.note(test.name, test.failure)
    whole = {test.name for test in ended} | {*passed}
    return book.tried(whole), book.bad(whole), len(whole)


def fuzz(
    minutes: float, say: Callable[[str], None], book: Book, at_once: int = 1
) -> tuple[int, int, int]:
    """Give the programs of the image damaged input; inputs tried, failed runs, all inputs."""
    until = deadline(minutes)
    runs = [f"run {number}" for number in range(_RUNS)]

    def attempt(_: int, run: str) -> None:
        seed = str(random.randrange(1 << 30))
        environment = {"KILN_FUZZ_INPUTS": str(_INPUTS), "KILN_FUZZ_SEED": seed}
        ended = _pytest(("tests/unit/test_runtime_fuzz.py",), environment, until, say)
        failures = "\n".join(test.failure for test in ended if test.failure)
        # A run counts when all of its programs have had their inputs.
        if failures or not any(test.skipped for test in ended):
            book.note(run, f"KILN_FUZZ_SEED={seed}\n{failures}" if failures else "")

    each(range(at_once), book.begin(runs), until, attempt)
    return book.tried(runs) * _INPUTS, book.bad(runs), _RUNS * _INPUTS


def _pytest(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    until: float,
    say: Callable[[str], None],
) -> list[Test]:
    memory = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="kiln-profile-", dir=memory) as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "devel.campaign.until"),
                *("-p", "no:cacheprovider", f"--junitxml={report}"),
                *((f"--basetemp={folder}/tests",) if "fuzz" in arguments[0] else ()),
                *arguments,
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
        ended = read(report) if report.exists() else []
    # Also when pytest could not collect the tests, or fails outside of the tests.
    if done.returncode not in (0, 5):
        say(f"pytest {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout[-3000:]}")
        if not any(test.failure for test in ended):
            ended.append(Test("pytest", done.stdout))
    return ended


def read(report: Path) -> list[Test]:
    """The tests of a JUnit report."""
    ended = []
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = f"{case.get('classname')}::{case.get('name')}"
        wrong = case.find("failure")
        wrong = case.find("error") if wrong is None else wrong
        failure = "" if wrong is None else wrong.text or "it failed"
        ended.append(Test(name, failure, skipped=case.find("skipped") is not None))
    return ended
