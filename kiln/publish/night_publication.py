"""Publishes what a night or a machine before it has built to the first channel of its row."""

from __future__ import annotations

from collections.abc import Callable

from kiln.base.recipe import Recipe
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.publish.night_records import Say, ShelfOf, built_here
from kiln.publish.publish import Publication, publish_row


def publish_built(
    recipe: Recipe,
    ami_id: str,
    settings: Publish,
    target: Target,
    *,
    shelf_of: ShelfOf,
    smoke_test: Callable[[Target, str], None],
    say: Say,
) -> Publication:
    """Publish an AMI of a row. One that another machine built has to pass `smoke_test` first, since
    that machine's verdict is not taken on trust. Raises what these two raise."""
    shelf = shelf_of(recipe)
    if not built_here(recipe, ami_id, shelf, say):
        smoke_test(target, ami_id)
    return publish_row(
        recipe,
        settings,
        target,
        ami_id=ami_id,
        channel=settings.channels[0],
        why="nightly",
        say=say,
        shelf=shelf,
    )
