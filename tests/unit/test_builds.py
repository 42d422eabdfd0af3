"""Several rows in one call: in which order, and what the end of a run says."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tasks
from kiln.base import needs
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.progress import Progress
from kiln.cli import main, targets
from kiln.cloud.target import Target
from kiln.matrix.load import load_recipes
from kiln.packer import program
from kiln.packer.render import render
from kiln.pipeline import build, verify
from kiln.pipeline import plan as planning
from kiln.pipeline.record import Record
from lab import target as lab_target
from lab.base import settings
from lab.daemon import users
from lab.rootfs import emulation
from lab.target import LabHooks, LabTarget
from tests.unit.records import a_record

LAB = LabTarget("--target lab", "us-east-1", endpoint="http://127.0.0.1:4602")
AWS = Target("--target aws", "us-east-1")
ROWS = load_recipes(ROOT / "amis.yaml")
MIXED = [row for row in ROWS if row.channel_line.startswith("al2023/lts/")]


@pytest.fixture(autouse=True)
def x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "host_arch", lambda: "x86_64")


def test_rows_that_the_lab_has_to_emulate_come_last_and_it_is_said_how_to_leave_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lab_target.host, "can_run", lambda: None)
    monkeypatch.setattr(lab_target.needs, "ensure", lambda *groups, **more: None)
    monkeypatch.setattr(LabHooks, "_prepare", lambda *_: None)
    out = io.StringIO()
    rows = sorted(MIXED, key=lambda row: row.arch)
    ordered = LAB.hooks.prepare(rows, Progress(out), install=False, own_kernel=False)
    archs = [row.arch for row in ordered]
    assert archs == sorted(archs, reverse=True) and len(set(archs)) == 2
    output = out.getvalue()
    assert "arm64 by qemu-user on x86_64" in output
    assert "2 rows" in output
    assert "--arch x86_64 leaves them out" in output


def test_settings_are_announced_but_for_the_callers_region_which_the_target_has() -> None:
    row = next(row for row in ROWS if row.arch == "x86_64")
    flags = {"tags": "team=ml", "region": "eu-west-1"}
    lines: list[str] = []
    planning.announce([row], planning.Options(aws_flags=flags), LAB, lines.append)
    assert [line for line in lines if line.startswith("aws: ")] == ["aws: tags team=ml (--tags)"]


def test_a_key_of_another_region_than_the_callers_is_refused_before_aws_is_asked() -> None:
    row = next(row for row in ROWS if row.arch == "x86_64")
    key = "arn:aws:kms:eu-west-1:123456789012:key/01234567-89ab-cdef-0123-456789abcdef"
    options = planning.Options(aws_flags={"kms_key_id": key})
    with pytest.raises(KilnError) as refused:
        planning.announce([row], options, AWS, lambda line: None)
    assert refused.value.message == (
        "kms_key_id (--kms-key-id): the key is in eu-west-1, and the build in us-east-1"
    )
    assert refused.value.exit_status == 2


def test_a_rows_region_that_the_lab_does_not_have_is_refused_by_where_it_is_named() -> None:
    row = next(row for row in ROWS if row.arch == "x86_64")
    options = planning.Options(aws_flags={"region": "eu-nowhere-1"})
    with pytest.raises(KilnError) as refused:
        planning.announce([row], options, LAB, lambda line: None)
    assert refused.value.message == "the lab has no region eu-nowhere-1"
    assert refused.value.exit_status == 2


@dataclass(frozen=True)
class TakenDown(LabHooks):
    """A lab that somebody takes down while a build prepares."""

    def prepare(self, recipes: Any, progress: Any, **more: Any) -> Any:
        users.refuse_if_used(settings.current())

    def gone(self) -> str:
        return "it is down"


class Lab(LabTarget):
    """A lab with these hooks."""

    @property
    def hooks(self) -> LabHooks:
        return TakenDown(self)


def test_the_lab_is_not_taken_down_while_a_build_prepares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path))
    monkeypatch.setattr(needs, "ensure", lambda *groups, **more: None)
    monkeypatch.setattr(program, "find_packer", lambda **_: None)
    target = Lab("a test")

    def build_it() -> None:
        build.build_recipes(
            ROWS[:1],
            planning.Options(),
            target,
            Progress(io.StringIO()),
            install=False,
            on_failure=lambda error: None,
        )

    def verify_it() -> None:
        ami_id = "ami-0123456789abcdef0"
        progress = Progress(io.StringIO())
        verify.verify_by_id(ami_id, None, target=target, progress=progress, install=False)

    for what, do in ((ROWS[0].name, build_it), ("ami-0123456789abcdef0", verify_it)):
        with pytest.raises(KilnError, match="is in use") as refused:
            do()
        assert f"{what}, process {os.getpid()}" in refused.value.message
    assert users.users(settings.current()) == []


def planned(rows: list[Any]) -> list[Any]:
    return [SimpleNamespace(rendered=render(row)) for row in rows]


def test_a_build_says_in_one_line_that_packer_is_stale_and_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path))
    output = io.StringIO()
    build.say_if_stale(planned(ROWS[:2]), Progress(output))
    assert output.getvalue().count("\n") == 1
    assert f"{tmp_path}/ is stale" in output.getvalue()
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
    command = ["./invoke", "verify", "--ami", "ami-0123456789abcdef0", "-k", "cuda"]
    assert main.run(command, tasks.ns) == exit_status


def test_a_row_that_crashes_keeps_the_outcome_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = a_record()

    def built(plan: Any, *more: Any) -> Record:
        if plan.recipe is ROWS[0]:
            raise TypeError("got multiple values")
        return good

    monkeypatch.setattr(build, "build_recipe", built)
    monkeypatch.setattr(
        build,
        "_set_up",
        lambda rows, *more, **most: ([SimpleNamespace(recipe=row) for row in rows], None),
    )
    failures: list[KilnError] = []
    outcome = build.build_recipes(
        ROWS[:2], planning.Options(), AWS, Progress(io.StringIO()),
        install=False, on_failure=failures.append,
    )  # fmt: skip
    assert outcome.built == (good,)
    assert not outcome.succeeded
    assert list(outcome.failures) == [ROWS[0].name]
    assert "TypeError: got multiple values" in failures[0].message


_MOST_MODULES = 57
_COUNT = """
import contextlib, io, sys
import tasks
from kiln.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main.run(["./invoke", "build", "--name", sys.argv[1], "--target", "lab", "--dry-run"], tasks.ns)
names = [n for n, module in sys.modules.items() if n.startswith("kiln.")]
print(*sorted(n for n in names if not hasattr(sys.modules[n], "__path__")))
"""


def test_build_runs_through_few_modules(tmp_path: Path) -> None:
    environment = {**os.environ, "KILN_LAB_STATE": str(tmp_path), "KILN_LAB_INDEX": "54"}
    command = [sys.executable, "-c", _COUNT, ROWS[0].name]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    names = done.stdout.split()
    assert "kiln.pipeline.plan" in names
    assert len(names) <= _MOST_MODULES, "\n".join(names)
