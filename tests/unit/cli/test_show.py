"""The table of the matrix."""

from __future__ import annotations

import json

import pytest

from kiln.base.recipe import Recipe
from kiln.cli import matrix
from kiln.cli.output import FORMAT
from kiln.matrix import load
from tests.unit.records import a_record

RECORD = a_record(status="verified", finished="2026-11-21T01:02:03Z", ami_id="ami-0abc")


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    return load.load_recipes()


@pytest.mark.parametrize("width", [40, 200])
def test_nothing_is_cut_however_narrow_the_terminal(
    recipes: list[Recipe],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    matrix.show_rows(recipes, {recipes[0].name: RECORD})
    text = capsys.readouterr().out
    for recipe in recipes:
        line = next(line for line in text.splitlines() if line.startswith(recipe.name + " "))
        for value in (recipe.driver, recipe.kernel_module, recipe.cuda, recipe.nccl, recipe.efa):
            assert (value or "-") in line.split()
    assert "verified ami-0abc 2026-11-21" in text
    assert "…" not in text and "\x1b" not in text


def test_missing_part_is_a_dash(recipes: list[Recipe], capsys: pytest.CaptureFixture[str]) -> None:
    matrix.show_rows([recipes[0].changed(name="bare", cuda=None, nccl=None, efa=None)], {})
    assert capsys.readouterr().out.splitlines()[1].split().count("-") == 3


def test_the_same_as_data(
    recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FORMAT, "json", True)
    matrix.show_rows(recipes, {recipes[0].name: RECORD})
    (first, *others) = json.loads(capsys.readouterr().out)
    assert first["last_build"] == {
        "status": "verified",
        "finished": "2026-11-21T01:02:03Z",
        "ami_id": "ami-0abc",
    }
    assert first["driver"] == recipes[0].driver
    assert {row["last_build"]["status"] for row in others} == {"not built"}
