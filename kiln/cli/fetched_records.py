"""Brings the records that other machines have made to tasks that read them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from kiln.cli.front import note

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.pipeline.records import RecordsBucket


def shelf_for(
    aws_flags: Mapping[str, str], place: Target | None = None, recipe: Recipe | None = None
) -> RecordsBucket | None:
    """The bucket of records that flags, environment, row or `defaults` name; None without one.

    `place` is where it is reached from, otherwise what `--target auto` is.
    Raises KilnError: exit status 2 for settings that cannot be, 1 if AWS refuses.
    """
    from kiln.base.account import Account
    from kiln.matrix import load
    from kiln.matrix.flags import records_bucket
    from kiln.pipeline.records import bucket_at

    settings = recipe.row.account if recipe else Account()
    if recipe is None:
        with contextlib.suppress(KilnError):  # of a matrix that only other tasks need
            settings = load.default_account()
    bucket = records_bucket(settings, aws_flags)
    if not bucket:
        return None
    from kiln.cli import targets  # with the lab, which costs a fifth of `list`

    return bucket_at(bucket, place or targets.choose())


def bring_for_names(aws_flags: Mapping[str, str], *names: str) -> None:
    """Fetch the records of these builds that are not here: `find_record` then finds them.

    Raises what `shelf_for` raises.
    """

    builds = [name for name in names if not name.endswith(".json") and not Path(name).is_file()]
    shelf = shelf_for(aws_flags) if builds else None
    if shelf is None:
        return
    for name in builds:
        shelf.fetch_named(name, note)


def bring_for_rows(aws_flags: Mapping[str, str], rows: Sequence[str]) -> None:
    """Fetch the newest record of each row; if AWS does not answer, prints that and continues."""

    try:
        shelf = shelf_for(aws_flags)
        if shelf:
            shelf.fetch_newest(rows, note)
    except KilnError as error:
        if error.exit_status == 2:
            raise
        note(f"only what was built here is shown: {error}")
