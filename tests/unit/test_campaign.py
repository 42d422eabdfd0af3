"""The campaign of `./invoke test --all`: its time, its figures, and what it counts as not tried."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devel.campaign import book, commands, ec2_faults, kills, profiles, run, testbed
from devel.campaign.book import Book
from devel.campaign.run import Clock, Figure
from devel.campaign.testbed import Ended
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.matrix.load import load_recipes


def test_the_parts_share_the_time_and_what_one_leaves_is_the_later_ones() -> None:
    moment = 0.0
    # Their weights are 2, 2, 3 and 1.
    clock = Clock(16, ("kills", "faults", "commands", "units"), now=lambda: moment)
    assert clock.minutes("kills") == pytest.approx(4)
    # It ended at once: its four minutes are divided among the others.
    assert clock.minutes("faults") == pytest.approx(16 * 2 / 6)
    moment = 16 * 60.0
    assert clock.minutes("commands") == 0


def test_a_part_alone_has_all_the_time() -> None:
    assert Clock(12, run.chosen("fuzz"), lambda: 0.0).minutes("fuzz") == 12


def test_the_parts_run_in_their_order_and_another_name_is_refused_with_all_names() -> None:
    assert run.chosen("units, kills") == ["kills", "units"]
    assert run.chosen(None) == list(run.WEIGHTS) == list(run._PARTS)
    with pytest.raises(KilnError, match=r"'kill' is not a part.*\n.*kills, faults"):
        run.chosen("kills,kill")


@pytest.mark.parametrize(("bad", "status"), [(0, 0), (1, 1)])
def test_what_a_part_found_is_the_exit_status_and_what_it_did_not_try_is_said(
    bad: int, status: int
) -> None:
    messages: list[str] = []
    figures = [
        Figure("points 3 / leaks 0", 0, 400, "2026-11-23 13:00"),
        Figure(f"faults 4 / clean {4 - bad}", bad),
    ]
    assert run.verdict(figures, messages.append) == status
    first = "points 3 / leaks 0 (NOT TRIED: 400) [2026-11-23 13:00]"
    assert messages == [first, f"faults 4 / clean {4 - bad}"]


def test_a_run_goes_on_where_the_one_before_was_cut_off(tmp_path: Path) -> None:
    first = Book(tmp_path / "book" / "kills.jsonl")
    assert sorted(first.begin("abc")) == ["a", "b", "c"]
    first.note("a")
    first.note("b", "a leak")
    first.path.open("a").write('{"case": "c", "fou')
    then = book.opened_at(first.path)
    # What failed is tried again, what passed is not.
    assert sorted(then.begin("abc")) == ["b", "c"]
    assert (then.tried("abc"), then.bad("abc")) == (2, 1)
    then.note("b")
    then.note("c", excuse="it may")
    done = book.opened_at(first.path)
    assert (done.tried("abc"), done.bad("abc"), done.excused()) == (3, 0, 1)
    assert done.begin("abc", anew=False) == []
    assert sorted(done.begin("abc")) == ["a", "b", "c"]
    assert done.when() == "never run"


def test_a_build_is_ended_at_what_it_changes_and_once_at_each_question_between() -> None:
    calls = ["DescribeImages", "RunInstances", "DescribeInstances", "DescribeInstances"]
    calls += ["DescribeImages", "DescribeInstances", "CreateTags", "CreateTags"]
    assert kills.steps(calls) == [
        *("DescribeImages after the beginning", "RunInstances 1"),
        *("DescribeInstances after RunInstances 1", "DescribeImages after RunInstances 1"),
        *("CreateTags 1", "CreateTags 2"),
    ]
    points = kills.points(calls)
    assert len({str(point) for point in points}) == len(points) == 2 * (6 + 12)
    assert {point.number for point in points} == {signal.SIGINT, signal.SIGTERM, signal.SIGKILL}


def test_each_action_fails_with_each_error_once_and_for_good() -> None:
    names = [str(scenario) for scenario in ec2_faults.scenarios(["RunInstances", "RunInstances"])]
    assert len(names) == len(set(names)) == 3 * 4 * 2 + 1 + 4
    assert "DeleteSnapshot answers ExpiredToken once" in names


RUN_OF_TWO = """def test_a(): pass
def test_b(): pass
"""


@pytest.mark.parametrize(
    ("seconds", "passed", "ended"),
    [
        (600, "", {"test_it::test_a": False, "test_it::test_b": False}),
        (600, "test_it::test_a", {"test_it::test_b": False}),
        (-1, "", {"test_it::test_a": True, "test_it::test_b": True}),
    ],
    ids=["in time", "one has passed before", "too late"],
)
def test_tests_that_would_begin_after_the_time_are_counted_as_not_tried(
    tmp_path: Path, seconds: int, passed: str, ended: dict[str, bool]
) -> None:
    (tmp_path / "test_it.py").write_text(RUN_OF_TWO)
    report = tmp_path / "report.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "devel.campaign.until", f"--junitxml={report}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KILN_UNTIL": str(time.monotonic() + seconds),
            "KILN_PASSED": passed,
        },
        check=True,
        capture_output=True,
    )
    assert {test.name: test.skipped for test in profiles.read(report)} == ended


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


SCRIPT = """prog one
prog two || echo "two failed: $?"
echo x | prog three
"""


def shimmed(place: Path, *, fail: str = "", record: bool = False) -> list[str]:
    """What a script says whose program has a shim; the real one says its words in capitals."""
    shims = place / "shims"
    for folder in (".numbers", ".record", ".replay", ".wanted"):
        (shims / folder).mkdir(parents=True, exist_ok=True)
        for path in (shims / folder).glob("*") if folder == ".numbers" else ():
            path.unlink()
    (place / "real").write_text("#!/bin/sh\necho $* | tr a-z A-Z\n")
    (place / "script.sh").write_text(SCRIPT)
    text = commands.shim_of(
        "prog", str(place / "real"), folder=str(shims), caller=f'"/bin/bash {place}/"*'
    )
    (shims / "prog").write_text(text)
    for path in (place / "real", shims / "prog"):
        path.chmod(0o755)
    given = {"KILN_FAIL": "prog" if fail else "", "KILN_NTH": fail}
    done = subprocess.run(
        ["/bin/bash", f"{place}/script.sh"],
        env={"PATH": f"{shims}:/usr/bin:/bin", **given, "KILN_RECORD": "1" if record else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


def test_a_recorded_command_answers_again_and_is_not_run(tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    assert shimmed(tmp_path, record=True) == ["ONE", "TWO", "THREE"]
    for path in (shims / ".record").iterdir():
        # What reads a pipe is not recorded.
        assert path.name.split(".")[1] in ("1", "2")
        path.rename(shims / ".replay" / path.name)
    (shims / ".replay" / "prog.1.out").write_text("recorded\n")
    assert shimmed(tmp_path, fail="2") == ["recorded", "two failed: 97", "THREE"]
    assert (shims / ".reached").exists()
    assert not (shims / ".diverged").exists()
    # It is asked something else than when it was recorded: it runs, and the try does not count.
    (shims / ".replay" / "prog.1.line").write_text("other")
    assert shimmed(tmp_path, fail="2") == ["ONE", "two failed: 97", "THREE"]
    assert (shims / ".diverged").exists()


def test_each_call_of_a_units_program_is_counted_whoever_makes_it(tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    commands.lay_shims(
        shims, {"uname": "/bin/uname"}, path="/usr/bin:/bin", folder=str(shims), caller="*"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", "uname -s; uname -m; echo $?"],
        env={"PATH": f"{shims}:/usr/bin:/bin", "KILN_FAIL": "uname", "KILN_NTH": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["Linux", "97"]
    assert (shims / ".calls").read_text().splitlines() == ["uname -s ", "uname -m "]


def test_cases_are_tried_in_several_places_at_once_and_each_one_once() -> None:
    tried: list[str] = []
    both = threading.Barrier(2, timeout=60)

    def attempt(place: int, case: str) -> None:
        tried.append(case)
        both.wait()

    testbed.each(range(2), "abcd", time.monotonic() + 600, attempt)
    assert sorted(tried) == ["a", "b", "c", "d"]
    testbed.each(range(2), "abcd", time.monotonic() - 1, attempt)
    assert len(tried) == 4


def test_each_line_of_the_campaigns_rows_is_in_the_matrix() -> None:
    assert set(commands.LINES) <= {recipe.channel_line for recipe in load_recipes()}


class BrokenWorld:
    """A lab whose builds fail without an attack."""

    lab = None
    ec2 = None

    def home(self) -> Path:
        return Path("/nowhere")

    def start(self, home: Path) -> None:
        return None

    def end(self, process: None, patience: float) -> Ended:
        return Ended(1, "error: the mirror is gone")

    def calls(self) -> list[str]:
        return ["DescribeImages"]


@pytest.mark.parametrize("part", [kills.campaign, ec2_faults.campaign])
def test_a_part_whose_build_fails_without_an_attack_tries_nothing_and_says_why(
    part: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devel.campaign.kills.inventory", lambda ec2: {})
    monkeypatch.setattr("devel.campaign.kills.control.call", lambda lab, what: {})
    with pytest.raises(RuntimeError, match="fails without an attack:\nerror: the mirror is gone"):
        part([BrokenWorld()], 1, print, Book(tmp_path / "part.jsonl"))
