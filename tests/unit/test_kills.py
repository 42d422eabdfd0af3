"""`./invoke test --kills`: where it ends a build, and what it says of what is left."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from devel import kills
from devel.kills import Ended


def test_a_build_is_killed_at_each_change_and_first_question() -> None:
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


@pytest.mark.parametrize(
    ("minutes", "left", "tried"),
    [(1, [], 26), (1, ["key pair: x"], 26), (-1, [], 0)],
    ids=["clean", "leak", "no-time"],
)
def test_a_leak_fails_the_run_and_untried_points_are_counted(
    minutes: float, left: list[str], tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills.host, "can_run", lambda: None)
    monkeypatch.setattr(kills.needs, "ensure", lambda *_, **__: None)
    monkeypatch.setattr(kills.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(kills, "testbed", contextlib.nullcontext)
    monkeypatch.setattr(kills.control, "status", lambda lab: None)
    monkeypatch.setattr(kills, "measured", lambda bed: (9.0, ["RunInstances"]))
    monkeypatch.setattr(kills, "kill", lambda *_: Ended(1, "output", list(left)))
    said: list[str] = []
    found = kills.kills(minutes, said.append)
    assert (found["tried"], found["not_tried"]) == (tried, 26 - tried)
    assert found["exit_status"] == int(bool(left))
    assert len(found["leaks"]) == len(left) * 26
    assert f"(NOT TRIED: {26 - tried})" in said[-1]


def test_a_build_that_fails_by_itself_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "inventory", lambda ec2: {})
    monkeypatch.setattr(kills.control, "call", lambda lab, what: {})
    bed = SimpleNamespace(
        lab=None,
        ec2=None,
        home=lambda: Path("/nowhere"),
        start=lambda home: None,
        end=lambda build, patience: Ended(1, "error: the mirror is gone"),
        calls=list,
    )
    with pytest.raises(RuntimeError, match="error: the mirror is gone"):
        kills.measured(bed)


def test_builds_are_killed_only_in_labs_that_hold_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path))
    (tmp_path / "lab54").mkdir()
    monkeypatch.setattr(kills.control, "status", lambda lab: {} if lab.index == 53 else None)
    assert [lab.index for lab in kills.free_labs(2)] == [52, 51]
