"""`./invoke test`: what it runs and leaves out, and its exit status."""

from __future__ import annotations

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


@pytest.mark.slow
def test_callers_pytest_options_choose_no_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing_has_this_name")
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    arguments = [str(tmp_path), "-n0", f"--rootdir={tmp_path}"]
    assert testing.run_pytest(arguments, lab=9) == 0
