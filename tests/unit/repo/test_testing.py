"""`./invoke test`: what it runs and leaves out, and its exit status."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from devel import testing
from kiln.base.errors import KilnError


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The exit status of pytest by folder; the linters find nothing."""
    statuses = {"tests/unit": 0, "tests/lab": 0}

    def run(arguments: list[str], lab: int, output: object = None) -> int:
        statuses[" ".join(arguments)] = statuses[arguments[0]]
        return statuses[arguments[0]]

    monkeypatch.setattr(testing.needs, "ensure", lambda *_, **__: None)
    monkeypatch.setattr(testing.host, "can_run", lambda: None)
    monkeypatch.setattr(testing, "lint", list)
    monkeypatch.setattr(testing, "_quick_linters", list)
    monkeypatch.setattr(testing, "run_pytest", run)
    return statuses


@pytest.mark.parametrize(("unit", "lab", "status"), [(0, 0, 0), (1, 0, 1), (0, 2, 1), (5, 0, 1)])
def test_any_failing_part_fails_the_run(runs, unit: int, lab: int, status: int) -> None:
    runs |= {"tests/unit": unit, "tests/lab": lab}
    assert testing.test()["exit_status"] == status


def test_machine_without_lab_fails_the_run(runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise KilnError("no root")

    monkeypatch.setattr(testing.host, "can_run", refuse)
    answer = testing.test()
    assert (answer["exit_status"], answer["not_run"]) == (1, {"tests/lab": "no root"})
    assert testing.test(lab=False)["exit_status"] == 0


@pytest.mark.parametrize(
    ("how", "marked"),
    [({}, "-m not all"), ({"everything": True}, ""), ({"quick": True}, "-m not slow")],
)
def test_marks_choose_the_tests(runs, how: dict[str, bool], marked: str) -> None:
    testing.test(**how)
    called = [call for call in runs if " " in call]
    assert len(called) == (1 if "quick" in how else 2)
    assert all(marked in call and ("-m" in call) is bool(marked) for call in called)


def test_name_that_no_test_has_is_not_a_success(runs) -> None:
    runs |= {"tests/unit": 5, "tests/lab": 5}
    with pytest.raises(KilnError, match="none has 'matrxi' in its name"):
        testing.test(only="matrxi")
    runs["tests/lab"] = 0
    assert testing.test(only="fleet")["exit_status"] == 0


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
def test_cores_are_those_that_a_container_may_use(
    files: dict[str, str], allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert testing.cores(tmp_path) == allowed


@pytest.mark.slow
def test_callers_pytest_options_choose_no_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing_has_this_name")
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    arguments = [str(tmp_path), "-n0", f"--rootdir={tmp_path}"]
    assert testing.run_pytest(arguments, lab=9) == 0
