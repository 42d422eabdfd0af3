"""The campaign of `./invoke test --all`: its time, its figures, and what it counts as not tried."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devel.campaign import commands, profiles, run
from devel.campaign.run import Clock, Figure
from kiln.base.paths import ROOT
from kiln.matrix.load import load_recipes


def test_the_parts_share_the_time_and_what_one_leaves_is_the_later_ones() -> None:
    moment = 0.0
    clock = Clock(13, lambda: moment)
    assert clock.minutes("kills") == pytest.approx(2)
    # It ended at once: its two minutes are divided among the others.
    assert clock.minutes("faults") == pytest.approx(13 * 2 / 11)
    moment = 13 * 60.0
    assert clock.minutes("commands") == 0


@pytest.mark.parametrize(("bad", "status"), [(0, 0), (1, 1)])
def test_what_a_part_found_is_the_exit_status_and_what_it_did_not_try_is_said(
    bad: int, status: int
) -> None:
    said: list[str] = []
    figures = [Figure("points 3 / leaks 0", 0, 400), Figure(f"faults 4 / clean {4 - bad}", bad)]
    assert run.verdict(figures, said.append) == status
    assert said == ["points 3 / leaks 0 (NOT TRIED: 400)", f"faults 4 / clean {4 - bad}"]


@pytest.mark.parametrize(("seconds", "passed", "not_tried"), [(600, 2, 0), (-1, 0, 2)])
def test_tests_that_would_begin_after_the_time_are_counted_as_not_tried(
    tmp_path: Path, seconds: int, passed: int, not_tried: int
) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    report = tmp_path / "report.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "devel.campaign.until", f"--junitxml={report}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KILN_UNTIL": str(time.monotonic() + seconds),
        },
        check=True,
        capture_output=True,
    )
    assert profiles.count(report) == profiles.Tests(passed=passed, not_tried=not_tried)


def test_of_the_calls_of_one_line_the_first_fails() -> None:
    """As bash writes it: the files, the lines that led there, the line; then the command."""
    trace = (
        "+ kiln.sh x.sh 5 0 20| rpm -q a\n"
        "++ kiln.sh x.sh 5 0 20| rpm -q b\n"
        "+ kiln.sh x.sh 9 0 20| command rpm -q c\n"
        "+ x.sh 0 3| [[ -n a ]]\n"
    )
    found = commands.one_per_place(commands.cases("x", ["rpm -q a", "rpm -q b", "rpm -q c"]), trace)
    assert [case.line for case in found] == ["rpm -q a", "rpm -q c"]
    # A trace that does not fit leaves no case out.
    found = commands.one_per_place(commands.cases("x", ["rpm -q a", "rpm -q b"]), trace)
    assert [case.line for case in found] == ["rpm -q a", "rpm -q b"]


def test_each_name_of_the_campaigns_recipes_is_in_the_matrix() -> None:
    names = [recipe.name for recipe in load_recipes()]
    for start in commands.RECIPES:
        assert len([name for name in names if name.startswith(start)]) == 1, start
