"""Rows of the matrix by their line, so that a new version needs no edit of the tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.matrix.load import load_recipes


@cache
def _rows(matrix: Path) -> dict[str, Recipe]:
    return {recipe.channel_line: recipe for recipe in load_recipes(matrix)}


def row(line: str, matrix: Path = ROOT / "amis.yaml") -> Recipe:
    """The row of a line, such as `al2023/lts/base/x86_64`, of this checkout's matrix or another.

    Raises KeyError for a line that the matrix does not have.
    """
    return _rows(matrix)[line]
