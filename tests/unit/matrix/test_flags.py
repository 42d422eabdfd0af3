"""Choosing rows by flags: what a person gets, and what they are told instead."""

from __future__ import annotations

import pytest

from kiln.base.account import Account, variables
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.matrix.flags import select, setting
from tests.unit.rows import row

LTS = row("al2023/lts/base/x86_64").driver.split(".")[0]


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    """Three rows of the matrix, and the first one's EKS flavor."""
    rows = [
        row(f"{start}/base/x86_64") for start in ("al2/classic", "al2023/lts", "ubuntu2204/lts")
    ]
    eks = rows[0].changed(name=rows[0].name.replace("base", "eks"), flavor="eks")
    return [*rows, eks]


# Flags, and the index of the row that they mean.
MEANT = [
    ({"distro": "al2", "driver": "510", "flavor": "base"}, 0),
    ({"driver": "510.47", "cuda": "11", "flavor": "base"}, 0),
    ({"cuda": "11.6", "flavor": "base", "arch": "x86_64"}, 0),
    ({"name": "al2-510.47.03-cuda11.6-base-x86_64"}, 0),
    ({"distro": "al2"}, 0),
    ({"distro": "al2", "kernel_module": "proprietary"}, 0),
    ({"distro": "al2", "flavor": "eks"}, 3),
]
# Flags, and words of the message and of the hint.
REFUSED = [
    ({"distro": "ubuntu2404", "driver": LTS}, "has --distro ubuntu2404", "'ubuntu2204'"),
    ({"driver": "470.256.02"}, "--driver 470.256.02", "510.47.03"),
    ({"driver": "51"}, "--driver 51", "510.47.03"),
    ({"distro": "al2", "driver": LTS}, f"has --distro al2 --driver {LTS}", "(distro is al2023)"),
    ({"driver": LTS}, "2 rows match", "--distro al2023|ubuntu2204"),
    ({}, "3 rows match (", "--distro al2|al2023|ubuntu2204"),
]


@pytest.mark.parametrize(("flags", "index"), MEANT)
def test_flags_find_the_row_they_describe(
    recipes: list[Recipe], flags: dict[str, str], index: int
) -> None:
    assert select(recipes, **flags) == [recipes[index]]


def test_all_takes_every_row_that_fits(recipes: list[Recipe]) -> None:
    assert select(recipes, every=True) == recipes
    assert select(recipes, driver=LTS, every=True) == recipes[1:3]


@pytest.mark.parametrize(("flags", "message", "hint"), REFUSED)
def test_flags_of_no_or_several_rows_are_bad_input(
    recipes: list[Recipe], flags: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(KilnError) as caught:
        select(recipes, **flags)
    assert caught.value.exit_status == 2
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_x86_and_the_open_module_are_meant(recipes: list[Recipe]) -> None:
    rows = [recipes[0].changed(arch="arm64"), recipes[0]]
    assert select(rows, distro="al2") == [recipes[0]]
    both, open_ = (recipes[0].changed(name=name, kernel_module=name) for name in ("both", "open"))
    assert select([both, open_], distro="al2") == [open_]
    assert select([both, open_], distro="al2", kernel_module="both") == [both]


def test_records_bucket_is_of_flag_variable_or_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Account(records_bucket="of-the-settings")
    assert setting("records_bucket", settings, {}) == "of-the-settings"
    monkeypatch.setenv(variables("records_bucket")[0], "of-a-variable")
    assert setting("records_bucket", settings, {}) == "of-a-variable"
    assert setting("records_bucket", settings, {"records_bucket": "of-a-flag"}) == "of-a-flag"
