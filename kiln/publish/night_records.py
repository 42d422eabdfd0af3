"""The records of a night's rows: fetched from where other machines keep them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kiln.base.recipe import Recipe
from kiln.pipeline import records
from kiln.pipeline.record import Record
from kiln.pipeline.records import RecordsBucket
from kiln.publish.night_end import builds_of_the_night
from kiln.publish.release_comparison import Bring

# A row's bucket of records, None without one. Without a row: that of `defaults`, since the release
# before may be of a row that is not in the matrix any more.
ShelfOf = Callable[[Recipe | None], RecordsBucket | None]
Say = Callable[[str], None]


def newest_of_the_night(
    recipes: Sequence[Recipe], shelf_of: ShelfOf, say: Say
) -> dict[str, Record]:
    """The newest build of each row, if it began in the last hours."""
    shelves: dict[RecordsBucket, list[str]] = {}
    for recipe in recipes:
        shelf = shelf_of(recipe)
        if shelf:
            shelves.setdefault(shelf, []).append(recipe.name)
    for shelf, rows in shelves.items():
        shelf.fetch_newest(rows, say, each=3)
    return builds_of_the_night([recipe.name for recipe in recipes])


def bringing(recipes: Sequence[Recipe], shelf_of: ShelfOf, say: Say) -> Bring:
    """A function that fetches the records of runs that other machines did: row → run id."""
    by_name = {recipe.name: recipe for recipe in recipes}

    def bring(runs: Mapping[str, str]) -> None:
        shelves: dict[RecordsBucket, dict[str, str]] = {}
        for row, run_id in runs.items():
            shelf = shelf_of(by_name.get(row))
            if shelf:
                shelves.setdefault(shelf, {})[row] = run_id
        for shelf, wanted in shelves.items():
            shelf.fetch_runs(wanted, say)

    return bring


def built_here(recipe: Recipe, ami_id: str, shelf: RecordsBucket | None, say: Say) -> bool:
    """Whether a build that made the AMI is on record, here or in the row's bucket."""
    if shelf:
        shelf.fetch_row(recipe.name, say)
    return any(build.ami_id == ami_id for build in records.all_of(recipe.name))
