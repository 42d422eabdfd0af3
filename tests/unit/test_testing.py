"""`./invoke test`: what it leaves out, and what it says about tests that did not run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from devel import testing
from devel.testing import Finished, Outcome, cores
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT

SKIPPING = """
import pytest

@pytest.mark.skipif(True, reason="groups take root")
def test_a(): pass

def test_b(): pytest.skip("no Python 3.7 on this machine")

def test_c(): pass
"""


def test_skipped_tests_are_listed_by_reason(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(SKIPPING)
    subprocess.run(
        [sys.executable, "-m", "pytest", "--junitxml=report.xml", "-o", "junit_family=xunit1"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert Outcome(tmp_path).skips().splitlines() == [
        "2 tests were skipped:",
        "  groups take root",
        "    test_x.py::test_a",
        "  no Python 3.7 on this machine",
        "    test_x.py::test_b",
    ]


def test_the_slow_files_are_there() -> None:
    assert [name for name in testing.SLOW if not (ROOT / "tests/unit" / name).exists()] == []


def test_no_lab_test_runs_while_the_kernels_log_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    counting, over = threading.Event(), threading.Event()

    labs: dict[str, int] = {}

    def run(report: Path, arguments: list[str], output: object = None, lab: int = 9) -> int:
        labs[report.stem] = lab
        events.append(f"{report.stem} starts")
        if report.stem == "kernel-log":
            counting.set()
            assert over.wait(60)
        if report.stem == "unit":
            over.set()  # it does not wait for the tests of the kernel's log
        events.append(f"{report.stem} ends")
        return int(report.stem == "kernel-log")

    def linters() -> list[Finished]:
        assert counting.wait(60)
        events.append("linters")
        return []

    monkeypatch.setattr(testing.needs, "ensure", lambda *_, **__: None)
    monkeypatch.setattr(testing.host, "can_run", lambda: None)
    monkeypatch.setattr(testing, "lint", linters)
    monkeypatch.setattr(testing, "run_pytest", run)
    assert testing.test()["exit_status"] == 1
    assert {event.split()[0] for event in events} == {
        *("linters", "kernel-log", "unit", "beside", "labs")
    }
    assert events.index("kernel-log starts") < events.index("linters")
    assert events.index("kernel-log ends") < events.index("labs starts")
    # A run of somebody else's keeps a lab from going down.
    used = [labs["labs"] + number for number in range(testing.MOST_AT_ONCE + 1)]
    used += [labs["beside"], labs["unit"]]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize(
    ("count", "gib", "labs"),
    [(1, 8, 2), (2, 8, 3), (8, 32, 9), (8, 4, 4), (64, 256, 13), (4, 0, 1)],
)
def test_as_many_labs_are_tested_at_once_as_the_machine_has_cores_and_memory_for(
    count: int, gib: int, labs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "cores", lambda: count)
    free = SimpleNamespace(available=gib << 30)
    monkeypatch.setattr(testing.psutil, "virtual_memory", lambda: free)
    assert testing.labs_at_once() == labs


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu.max": "nonsense\n"}, 8),
    ],
)
def test_the_cores_are_those_that_a_container_may_use(
    files: dict[str, str], allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores(tmp_path) == allowed


def test_quick_runs_the_unit_tests_without_the_slow_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[list[str]] = []
    beside: list[dict[str, list[str]]] = []
    monkeypatch.setattr(testing, "side_by_side", lambda commands: beside.append(commands) or [])
    monkeypatch.setattr(
        testing, "run_pytest", lambda report, arguments, lab: runs.append(arguments) or 1
    )
    testing.quick()
    runs.clear()
    assert any(command[-2:] == ["-q", "tests/lab"] for command in beside[0].values())
    assert testing.quick(only="matrix")["exit_status"] == 1
    (arguments,) = runs
    assert arguments[0] == "tests/unit"
    assert {f"--ignore=tests/unit/{name}" for name in testing.SLOW} < set(arguments)
    assert arguments[-2:] == ["-k", "matrix"]
    assert "left out by --quick: tests/lab" in capsys.readouterr().err


def test_a_name_that_no_test_has_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "run_pytest", lambda *given, **more: 0)
    with pytest.raises(KilnError, match="none has 'matrxi' in its name"):
        testing.quick(only="matrxi")


def test_a_browser_that_cannot_be_had_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kiln.base.needs.shutil.which", lambda command: None)
    testing.browser_if_there_is_one()
    assert "skipping browser tests: missing on this machine" in capsys.readouterr().err


def test_callers_pytest_options_choose_no_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing_has_this_name")
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    arguments = [str(tmp_path), "-n0", f"--rootdir={tmp_path}"]
    assert testing.run_pytest(tmp_path / "report.xml", arguments) == 0
