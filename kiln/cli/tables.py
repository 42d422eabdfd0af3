"""The matrix as a table: what each AMI holds and how its last build ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kiln.base.recipe import Recipe
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


def table(recipes: Sequence[Recipe], records: Mapping[str, Record | None]) -> Table:
    """The same for a terminal: as wide as it needs to be, so print it with `soft_wrap=True`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("AMI", "distro", "driver", "module", "CUDA", "NCCL", "EFA", "flavor", "arch"):
        found.add_column(heading)
    found.add_column("last build")
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
        said = " ".join(part for part in parts if part)
        found.add_row(*cells, Text(said, style=_STYLES.get(build["status"], "dim")))
    # A version cut short is a wrong version: let the terminal wrap lines rather than Rich columns.
    found.width = Console(width=1000).measure(found).maximum
    return found


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
