"""`which`: the rows that serve an instance type or a purpose."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.compat.which import rows_for, table_rows, which_text
from kiln.matrix import flags
from kiln.matrix.load import load_recipes
from tests.unit.rows import row

RECIPES = load_recipes(ROOT / "amis.yaml")
CLASSIC, LTS = row("al2/classic/base/x86_64"), row("al2023/lts/base/x86_64")


def rows(answer: dict[str, Any], key: str) -> list[str]:
    return [entry["row"] for entry in answer[key]]


def asked(instance_type: str | None, *recipes: Recipe, **purpose: str) -> dict[str, Any]:
    rows = recipes or flags.select(RECIPES, every=True, **purpose)
    today = date(2026, 11, 21)
    return rows_for(instance_type, rows, flavor=purpose.get("flavor"), today=today)


def first_of(stack: str) -> Recipe:
    return next(recipe for recipe in RECIPES if recipe.stack == stack)


def test_supported_driver_comes_before_one_past_its_end() -> None:
    answer = asked("p4d.24xlarge", CLASSIC, LTS)
    assert rows(answer, "serves") == [LTS.name, CLASSIC.name]
    assert answer["gpus"] == "8 × NVIDIA A100-SXM4-40GB"
    # 470 on AL2 drives a g4dn without a word; the open modules of 580 get one about GSP.
    kepler, both = first_of("kepler"), next(r for r in RECIPES if r.kernel_module == "both")
    serves = rows(asked("g4dn.xlarge", kepler, LTS, both), "serves")
    assert serves == [both.name, LTS.name, kepler.name]
    assert rows(asked("g4dn.xlarge", first_of("debian"), LTS), "serves")[0] == LTS.name


def test_row_whose_driver_is_too_old_has_its_reason() -> None:
    # A row's own targets do not matter.
    elsewhere = LTS.changed(target_instance_types=("p3dn.24xlarge",))
    answer = asked("p5.48xlarge", CLASSIC, elsewhere)
    assert rows(answer, "serves") == [LTS.name]
    (entry,) = answer["does_not"]
    assert (entry["row"], "525" in entry["reasons"][0]) == (CLASSIC.name, True)
    text = which_text(asked("p6-b300.48xlarge", CLASSIC))
    assert "no row of the matrix serves it" in text
    assert f"-  {CLASSIC.name}" in text


def test_table_has_one_row_an_image() -> None:
    old = next(recipe for recipe in RECIPES if recipe.distro.id == "ubuntu2004")
    answer = asked("p5.48xlarge", CLASSIC, LTS, old)
    *serves, no = table_rows(answer, RECIPES)
    assert serves[0][:5] == [LTS.name, "580.178.04", "open", "1.51.0", "2028-06-30"]
    assert [cells[-1] for cells in (*serves, no)] == [
        ("yes", "green"), ("yes, 2 warnings", "yellow"), ("no", "dim")
    ]  # fmt: skip


def test_efa_counts_where_the_type_has_it() -> None:
    answer = asked("p5.48xlarge", LTS.changed(name="without-efa", efa=None), LTS)
    assert rows(answer, "serves") == [LTS.name, "without-efa"]
    assert any("no EFA software" in reason for reason in answer["serves"][1]["reasons"])
    # On g6.xlarge fabric manager and EFA lie idle, without a warning.
    (entry,) = asked("g6.xlarge", LTS)["serves"]
    assert entry["warnings"] == []


def test_purpose_lists_its_rows_best_first() -> None:
    answer = asked(None, distro="al2023", flavor="base", arch="x86_64")
    others = [row(f"al2023/{stack}/base/x86_64").name for stack in ("lts-both", "production")]
    assert rows(answer, "serves") == [LTS.name, *others]
    assert "p5" in answer["serves"][0]["reasons"][1].removeprefix("serves ").split(", ")
    assert which_text(answer).startswith(f"1. {LTS.name}\n")
    both = asked("p5.48xlarge", flavor="eks")
    assert rows(both, "serves") == [row("al2023/lts/eks/x86_64").name]
    assert rows(both, "does_not") == [row("al2023/lts/eks/arm64").name]


def test_unknown_type_is_bad_input() -> None:
    with pytest.raises(KilnError, match=r"p9\.48xlarge is not a GPU instance type"):
        asked("p9.48xlarge")
