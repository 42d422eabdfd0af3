"""The table of the matrix."""

from __future__ import annotations

import json

import pytest

from kiln.cli import matrix
from kiln.cli.output import FORMAT
from kiln.matrix import load
from tests.unit.records import a_record

RECORD = a_record(status="verified", finished="2026-11-21T01:02:03Z", ami_id="ami-0abc")
RECIPES = load.load_recipes()


@pytest.mark.parametrize("width", [40, 200])
def test_narrow_terminal_cuts_nothing(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    bare = RECIPES[0].changed(name="bare", cuda=None, nccl=None, efa=None)
    matrix.show_rows([*RECIPES, bare], {RECIPES[0].name: RECORD})
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    for recipe in RECIPES:
        for value in (recipe.driver, recipe.kernel_module, recipe.cuda, recipe.nccl, recipe.efa):
            assert (value or "-") in lines[recipe.name]
    assert lines["bare"].count("-") == 3
    assert "verified ami-0abc 2026-11-21" in text
    assert "…" not in text and "\x1b" not in text


def test_rows_as_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(FORMAT, "json", True)
    matrix.show_rows(RECIPES, {RECIPES[0].name: RECORD})
    (first, *others) = json.loads(capsys.readouterr().out)
    built = {"status": "verified", "finished": RECORD.finished, "ami_id": "ami-0abc"}
    assert first["last_build"] == built
    assert {row["last_build"]["status"] for row in others} == {"not built"}
