"""The table of the matrix."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from kiln.base.recipe import Recipe
from kiln.cli import tables
from kiln.matrix import load
from kiln.pipeline.record import Record
from tests.unit.records import a_record

RECORD = a_record(status="verified", finished="2026-11-21T01:02:03Z", ami_id="ami-0abc")


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    return load.load_recipes()


def printed(recipes: list[Recipe], records: dict[str, Record | None], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(tables.recipes_table(recipes, records), soft_wrap=True)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_nothing_is_cut_however_narrow_the_terminal(recipes: list[Recipe], width: int) -> None:
    text = printed(recipes, {recipes[0].name: RECORD}, width)
    for recipe in recipes:
        line = next(line for line in text.splitlines() if line.startswith(recipe.name + " "))
        for value in (recipe.driver, recipe.kernel_module, recipe.cuda, recipe.nccl, recipe.efa):
            assert (value or "-") in line.split()
    assert "verified ami-0abc 2026-11-21" in text
    assert "…" not in text


def test_a_pipe_gets_no_control_codes(recipes: list[Recipe]) -> None:
    assert "\x1b" not in printed(recipes, {}, 200)


def test_what_is_not_on_an_image_is_a_dash(recipes: list[Recipe]) -> None:
    bare = recipes[0].changed(name="bare", cuda=None, nccl=None, efa=None)
    line = printed([bare], {}, 200).splitlines()[1]
    assert line.split().count("-") == 3


def test_the_same_as_data(recipes: list[Recipe]) -> None:
    (first, *others) = json.loads(json.dumps(tables.rows(recipes, {recipes[0].name: RECORD})))
    assert first["last_build"] == {
        "status": "verified",
        "finished": "2026-11-21T01:02:03Z",
        "ami_id": "ami-0abc",
    }
    assert first["driver"] == recipes[0].driver
    assert {row["last_build"]["status"] for row in others} == {"not built"}
