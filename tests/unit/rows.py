"""What tests take from the matrix so that a new version needs no edit of them: rows by their line,
and a version of each component."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe, Stack
from kiln.matrix.load import load_recipes


@cache
def _rows(matrix: Path) -> dict[str, Recipe]:
    return {recipe.channel_line: recipe for recipe in load_recipes(matrix)}


def row(line: str, matrix: Path = ROOT / "amis.yaml") -> Recipe:
    """The row of a line, such as `al2023/lts/base/x86_64`, of this checkout's matrix or another.

    Raises KeyError for a line that the matrix does not have.
    """
    return _rows(matrix)[line]


def every_version() -> dict[str, Any]:
    """Each field of a stack that makes a component part of an image → what a row has there; where
    none has anything, a version that nobody published."""
    fields = Stack.model_fields.keys() - {
        *("driver", "driver_source", "kernel_module", "kernel", "package_snapshot")
    }
    made = _rows(ROOT / "amis.yaml").values()
    found = {
        field: next((value for recipe in made if (value := getattr(recipe, field))), "9.8.7")
        for field in sorted(fields)
    }
    return found | {"package_snapshot": "20240301T030400Z"}
