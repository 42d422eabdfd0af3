"""Choosing rows by flags: what a person gets, and what they are told instead."""

from __future__ import annotations

import re

import pytest

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.matrix.select import select
from tests.unit.rows import row

LTS = row("al2023/lts/base/x86_64").driver_branch


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    """Three rows of the matrix, and the first one's EKS flavour."""
    rows = [
        row(f"{start}/base/x86_64") for start in ("al2/classic", "al2023/lts", "ubuntu2204/lts")
    ]
    eks = rows[0].changed(name=rows[0].name.replace("base", "eks"), flavor="eks")
    return [*rows, eks]


def _is_usual(recipe: Recipe) -> bool:
    return (recipe.flavor, recipe.arch) == ("base", "x86_64")


def names(found: list[Recipe]) -> list[str]:
    return [recipe.name for recipe in found]


@pytest.mark.parametrize(
    "flags",
    [
        {"distro": "al2", "driver": "510.47.03", "flavor": "base"},
        {"distro": "al2", "driver": "510", "flavor": "base"},
        {"driver": "510.47", "cuda": "11", "flavor": "base"},
        {"cuda": "11.6", "flavor": "base", "arch": "x86_64"},
        {"name": "al2-510.47.03-cuda11.6-base-x86_64"},
    ],
)
def test_flags_find_the_row_they_describe(recipes: list[Recipe], flags: dict[str, str]) -> None:
    assert names(select(recipes, **flags)) == ["al2-510.47.03-cuda11.6-base-x86_64"]


def test_every_row_that_fits_is_taken_when_asked_for(recipes: list[Recipe]) -> None:
    assert select(recipes, every=True) == recipes
    assert {r.distro.id for r in select(recipes, driver=LTS, every=True)} == {
        "al2023",
        "ubuntu2204",
    }


def refused(recipes: list[Recipe], **flags: str) -> KilnError:
    with pytest.raises(KilnError) as caught:
        select(recipes, **flags)
    assert caught.value.exit_status == 2
    return caught.value


def test_a_misspelt_distro_is_answered_with_the_nearest(recipes: list[Recipe]) -> None:
    error = refused(recipes, distro="ubuntu2404", driver=LTS)
    assert error.message == "no row of the matrix has --distro ubuntu2404"
    assert "did you mean 'ubuntu2204'" in error.hint


def test_an_unknown_driver_is_answered_with_those_there_are(recipes: list[Recipe]) -> None:
    error = refused(recipes, driver="470.256.02")
    assert "510.47.03" in error.hint and LTS in error.hint


def test_half_a_number_does_not_begin_a_version(recipes: list[Recipe]) -> None:
    assert "--driver 51" in refused(recipes, driver="51").message


def test_flags_that_exist_but_not_together_name_the_nearest_rows(recipes: list[Recipe]) -> None:
    cuda = recipes[1].cuda
    error = refused(recipes, distro="al2", driver=LTS, cuda=cuda)
    assert error.message == f"no row of the matrix has --distro al2 --driver {LTS} --cuda {cuda}"
    assert f"al2023-{LTS}" in error.hint and "(distro is al2023)" in error.hint
    assert "al2-510" not in error.hint


def test_several_rows_are_named_with_the_flag_that_tells_them_apart(recipes: list[Recipe]) -> None:
    error = refused(recipes, driver=LTS)
    assert len(re.findall(rf"^  \S+-{LTS}\.", error.message, re.MULTILINE)) == 2
    assert "--distro al2023|ubuntu2204" in error.hint
    assert "--all" in error.hint


def test_the_base_flavour_is_meant_when_none_is_said(recipes: list[Recipe]) -> None:
    assert [recipe.flavor for recipe in select(recipes, distro="al2")] == ["base"]
    assert [recipe.flavor for recipe in select(recipes, distro="al2", flavor="eks")] == ["eks"]


def test_this_kind_of_processor_is_meant_when_none_is_said(recipes: list[Recipe]) -> None:
    rows = [recipes[0].changed(arch="arm64"), recipes[0]]
    assert select(rows, distro="al2") == [recipes[0]]


def test_of_one_driver_the_row_with_the_open_module_is_meant(recipes: list[Recipe]) -> None:
    rows = [
        recipes[0].changed(name="both", kernel_module="both"),
        recipes[0].changed(name="open", kernel_module="open"),
    ]
    assert [recipe.name for recipe in select(rows, distro="al2")] == ["open"]
    assert [r.name for r in select(rows, distro="al2", kernel_module="both")] == ["both"]


def test_rows_of_two_flavours_are_told_apart_by_flavour(recipes: list[Recipe]) -> None:
    rows = [recipes[3], recipes[3].changed(name="al2-ecs", flavor="ecs")]
    assert "--flavor eks|ecs" in refused(rows, distro="al2").hint


def test_no_flag_at_all_lists_the_matrix(recipes: list[Recipe]) -> None:
    error = refused(recipes)
    assert all(recipe.name in error.message for recipe in recipes if _is_usual(recipe))
    assert "--distro al2|al2023|ubuntu2204" in error.hint
