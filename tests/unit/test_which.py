"""`which`: the rows that serve an instance type."""

from datetime import date

import pytest

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.compat.which import rows_for, which_text
from kiln.matrix.load import load_recipes
from tests.unit.rows import row

TODAY = date(2026, 11, 21)
RECIPES = load_recipes(ROOT / "amis.yaml")
CLASSIC, LTS = row("al2/classic/base/x86_64"), row("al2023/lts/base/x86_64")


def rows(answer, key):
    return [entry["row"] for entry in answer[key]]


def test_a_supported_driver_comes_before_one_past_its_end():
    answer = rows_for("p4d.24xlarge", [CLASSIC, LTS], today=TODAY)
    assert rows(answer, "serves") == [LTS.name, CLASSIC.name]
    assert answer["gpus"] == "8 × NVIDIA A100-SXM4-40GB"


def test_a_row_whose_driver_is_too_old_is_listed_with_the_reason():
    answer = rows_for("p5.48xlarge", [CLASSIC, LTS], today=TODAY)
    assert rows(answer, "serves") == [LTS.name]
    (entry,) = answer["does_not"]
    assert entry["row"] == CLASSIC.name
    assert "525" in entry["reasons"][0]


def test_the_rows_own_targets_do_not_matter():
    elsewhere = LTS.changed(target_instance_types=("p3dn.24xlarge",))
    assert rows(rows_for("p5.48xlarge", [elsewhere], today=TODAY), "serves") == [LTS.name]


def test_efa_counts_where_the_type_has_it():
    without = LTS.changed(name="without-efa", efa=None)
    answer = rows_for("p5.48xlarge", [without, LTS], today=TODAY)
    assert rows(answer, "serves") == [LTS.name, "without-efa"]
    assert any("no EFA software" in reason for reason in answer["serves"][1]["reasons"])


def test_settings_that_a_type_does_not_use_are_not_a_warning():
    # One image serves p5 and g6; on g6.xlarge fabric manager and EFA lie idle.
    (entry,) = rows_for("g6.xlarge", [LTS], today=TODAY)["serves"]
    assert entry["warnings"] == []


def test_what_gets_no_fixes_any_more_comes_last():
    # 470 on AL2 drives a g4dn without a word; the open modules of 580 get one about GSP.
    kepler = next(recipe for recipe in RECIPES if recipe.stack == "kepler")
    debian = next(recipe for recipe in RECIPES if recipe.stack == "debian")
    answer = rows_for("g4dn.xlarge", [kepler, debian, CLASSIC, LTS], today=TODAY)
    assert rows(answer, "serves")[0] == LTS.name
    both = next(recipe for recipe in RECIPES if recipe.kernel_module == "both")
    answer = rows_for("g4dn.xlarge", [kepler, LTS, both], today=TODAY)
    assert rows(answer, "serves") == [both.name, LTS.name, kepler.name]


def test_the_text_says_so_when_nothing_serves():
    text = which_text(rows_for("p6-b300.48xlarge", [CLASSIC], today=TODAY))
    assert "no row of the matrix serves it" in text
    assert f"-  {CLASSIC.name}" in text


def test_an_unknown_type_is_bad_input():
    with pytest.raises(KilnError, match=r"p9\.48xlarge is not a GPU instance type"):
        rows_for("p9.48xlarge", RECIPES)


def test_rows_for_a_purpose_without_an_instance_type_best_first():
    answer = rows_for(None, RECIPES, distro="al2023", flavor="base", arch="x86_64", today=TODAY)
    assert rows(answer, "serves") == [
        LTS.name,
        row("al2023/lts-both/base/x86_64").name,
        row("al2023/production/base/x86_64").name,
    ]
    assert answer["left_out"] == len(RECIPES) - 3
    assert "p5" in answer["serves"][0]["reasons"][1].removeprefix("serves ").split(", ")
    text = which_text(answer)
    assert text.startswith(f"1. {LTS.name}\n")
    assert text.endswith(
        f"{len(RECIPES) - 3} rows are of another distribution, flavor or processor"
    )


def test_a_purpose_and_an_instance_type_together():
    answer = rows_for("p5.48xlarge", RECIPES, flavor="eks", today=TODAY)
    assert rows(answer, "serves") == [row("al2023/lts/eks/x86_64").name]
    assert rows(answer, "does_not") == [row("al2023/lts/eks/arm64").name]


def test_a_purpose_that_does_not_exist_is_bad_input():
    with pytest.raises(KilnError, match="--flavor ekss: there is none") as refused:
        rows_for(None, RECIPES, flavor="ekss")
    assert "did you mean 'eks'" in refused.value.hint
    with pytest.raises(KilnError, match="--distro rocky9: there is none to build on"):
        rows_for(None, RECIPES, distro="rocky9")
