"""Several rows in one call: in which order, and what the end of a run says."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tasks
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.progress import Progress
from kiln.cli import main, targets
from kiln.cloud.target import Target
from kiln.matrix.load import load_recipes
from kiln.packer.render import render
from kiln.pipeline import build, verify
from kiln.pipeline.plan import Options
from kiln.pipeline.record import Record
from lab import target as lab_target
from lab.rootfs import emulation
from lab.target import LabHooks, LabTarget
from tests.unit.records import a_record

AWS = Target("--target aws", "us-east-1")
ROWS = load_recipes(ROOT / "amis.yaml")
AMI = "ami-0123456789abcdef0"


def test_emulated_rows_come_last_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(lab_target.needs, "ensure", lambda *groups, **more: None)
    monkeypatch.setattr(LabHooks, "_prepare", lambda *_: None)
    out = io.StringIO()
    mixed = [row for row in ROWS if row.channel_line.startswith("al2023/lts/")]
    rows = sorted(mixed, key=lambda row: row.arch)
    lab = LabTarget("--target lab", "us-east-1", endpoint="http://127.0.0.1:4602")
    with lab.hooks.prepared("rows", rows, Progress(out)) as ordered:
        archs = [row.arch for row in ordered]
    assert archs == sorted(archs, reverse=True) and len(set(archs)) == 2
    assert "--arch x86_64 leaves them out" in out.getvalue()


def build_rows(target: Target, *rows: Any, **more: Any) -> Any:
    progress = Progress(io.StringIO())
    fail = {"on_failure": lambda error: None} | more
    return build.build_recipes(rows, Options(), target, progress, install=False, **fail)


def test_build_says_that_packer_is_stale_and_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path))
    output = io.StringIO()
    planned: list[Any] = [SimpleNamespace(rendered=render(row)) for row in ROWS[:2]]
    build.say_if_stale(planned, Progress(output))
    assert output.getvalue().startswith(f"{tmp_path}/ is stale")
    assert output.getvalue().count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "left", "exit_status"),
    [("unverified", (), 0), ("unverified", ("volume vol-1",), 1), ("failed", (), 1)],
)
def test_verify_of_single_checks_fails_if_something_is_left(
    monkeypatch: pytest.MonkeyPatch, status: Any, left: tuple[str, ...], exit_status: int
) -> None:
    record = a_record(status=status, left=left)
    monkeypatch.setattr(targets, "choose", lambda *flags: AWS)
    monkeypatch.setattr(verify, "verify_by_id", lambda *given, **more: record)
    assert main.run(["./invoke", "verify", "--ami", AMI, "-k", "cuda"], tasks.ns) == exit_status


def test_row_that_crashes_keeps_the_outcome_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    good = a_record()

    def built(plan: Any, *more: Any) -> Record:
        if plan.recipe is ROWS[0]:
            raise TypeError("got multiple values")
        return good

    plans = [SimpleNamespace(recipe=row) for row in ROWS[:2]]
    monkeypatch.setattr(build, "build_recipe", built)
    monkeypatch.setattr(build.program, "find_packer", lambda **_: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(build, "_plan", lambda *_: plans)
    failures: list[KilnError] = []
    outcome = build_rows(AWS, *ROWS[:2], on_failure=failures.append)
    assert (outcome.built, outcome.succeeded) == ((good,), False)
    assert list(outcome.failures) == [ROWS[0].name]
    assert "TypeError: got multiple values" in failures[0].message


COUNT = """
import contextlib, io, sys
import tasks
from kiln.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main.run(["./invoke", "build", "--name", sys.argv[1], "--target", "lab", "--dry-run"], tasks.ns)
names = [n for n, module in sys.modules.items() if n.startswith("kiln.")]
print(*sorted(n for n in names if not hasattr(sys.modules[n], "__path__")))
"""


@pytest.mark.slow
def test_build_runs_through_few_modules(tmp_path: Path) -> None:
    environment = {**os.environ, "KILN_LAB_STATE": str(tmp_path), "KILN_LAB_INDEX": "54"}
    done = subprocess.run(
        [sys.executable, "-c", COUNT, ROWS[0].name],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = done.stdout.split()
    assert "kiln.pipeline.plan" in names
    assert len(names) <= 65, "\n".join(names)
