"""The table of the matrix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tasks
from kiln.cli import main, matrix
from kiln.cli.output import FORMAT
from kiln.cloud.runs import Run
from kiln.matrix import load
from kiln.pipeline.record import write_record
from tests.unit.records import a_record

RECORD = a_record(status="verified", finished="2026-11-21T01:02:03Z", ami_id="ami-0abc")
RECIPES = load.load_recipes()


@pytest.mark.parametrize("width", [40, 200])
def test_narrow_terminal_cuts_nothing(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    bare = RECIPES[0].changed(name="bare", nccl=None, efa=None)
    matrix.show_rows([*RECIPES, bare], {RECIPES[0].name: RECORD})
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    for recipe in RECIPES:
        for value in (recipe.nccl, recipe.efa):
            assert (value or "-") in lines[recipe.name]
    assert lines["bare"].count("-") == 2
    assert "verified ami-0abc 2026-11-21" in text
    assert "…" not in text and "\x1b" not in text


def test_ami_that_is_gone_is_not_verified(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "labs"))
    record = a_record(target="lab", region="us-east-1")
    run = Run(record.run_id, record.recipe.name, tmp_path / "build" / record.recipe.name / "1")
    run.folder.mkdir(parents=True)
    write_record(run, record)
    ami = tmp_path / "labs" / "lab3" / "images" / "ami-0fade000"
    ami.mkdir(parents=True)
    (ami / "image.json").touch()
    for status in ("verified", "gone"):
        assert main.run(["./invoke", "list"], tasks.ns) == 0
        assert f" {status} ami-0fade000 2026-11-21" in capsys.readouterr().out
        shutil.rmtree(tmp_path / "labs", ignore_errors=True)  # as lab.clean does


def test_rows_as_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(FORMAT, "json", True)
    matrix.show_rows(RECIPES, {RECIPES[0].name: RECORD})
    (first, *others) = json.loads(capsys.readouterr().out)
    built = {"status": "verified", "finished": RECORD.finished, "ami_id": "ami-0abc"}
    assert first["last_build"] == built
    assert {row["last_build"]["status"] for row in others} == {"not built"}
