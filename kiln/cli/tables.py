"""The matrix as a table: what is on each AMI, and the result of its last build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kiln.base.recipe import Recipe
from kiln.base.vocabulary import printable
from kiln.pipeline.record import Record

if TYPE_CHECKING:
    from rich.table import Table

NOT_BUILT = "not built"
_STYLES = {"verified": "green", "failed": "red", "unverified": "yellow"}


def rows(recipes: Sequence[Recipe], records: Mapping[str, Record | None]) -> list[dict[str, Any]]:
    """One mapping per recipe, as `list --json` prints it.

    `records` maps a recipe's name to the record of its last build.
    """
    return [_row(recipe, records.get(recipe.name)) for recipe in recipes]


def recipes_table(recipes: Sequence[Recipe], records: Mapping[str, Record | None]) -> Table:
    """The table for a terminal, as wide as its longest row: print it with `soft_wrap=True`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("AMI", "distro", "driver", "module", "CUDA", "NCCL", "EFA", "flavor", "arch"):
        result.add_column(heading)
    result.add_column("last build")
    for row in rows(recipes, records):
        cells = (
            row["name"],
            row["distro"],
            row["driver"],
            row["kernel_module"],
            row["cuda"] or "-",
            row["nccl"] or "-",
            row["efa"] or "-",
            row["flavor"],
            row["arch"],
        )
        build = row["last_build"]
        parts = (build["status"], build["ami_id"], str(build["finished"] or "")[:10])
        shown = " ".join(part for part in parts if part)
        result.add_row(
            *map(Text, cells), Text(printable(shown), style=_STYLES.get(build["status"], "dim"))
        )
    # A truncated version is a wrong version: the terminal wraps lines, Rich does not cut columns.
    # On a dumb terminal Rich takes 80 columns unless both numbers are given.
    result.width = Console(width=1000, height=25).measure(result).maximum
    return result


def _row(recipe: Recipe, record: Record | None) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "distro": recipe.distro.id,
        "driver": recipe.driver,
        "kernel_module": recipe.kernel_module,
        "cuda": recipe.cuda,
        "nccl": recipe.nccl,
        "efa": recipe.efa,
        "flavor": recipe.flavor,
        "arch": recipe.arch,
        "last_build": {
            "status": record.status if record else NOT_BUILT,
            "finished": record.finished if record else None,
            "ami_id": record.ami_id if record else None,
        },
    }
