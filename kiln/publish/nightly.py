"""`nightly`: builds the rows whose inputs have changed, and publishes them to the first channel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.pipeline.build import Outcome
from kiln.publish.night_plan import Due, Night
from kiln.publish.night_results import (
    Compare,
    RowResult,
    comparison_of,
    of_impossible,
    of_skipped,
    result_of,
)
from kiln.publish.publish import Publication


def run_night(
    night: Night,
    build: Callable[[list[Recipe]], Outcome],
    publish: Callable[[Recipe, str], Publication],
    compare: Compare,
) -> list[RowResult]:
    """Build and publish what is due; one row's failure stops no other.

    `build` builds recipes; `publish` publishes an AMI of a recipe to its first channel; `compare`
    compares what a channel of a line holds with what it held before.
    """
    results = [
        *(of_skipped(row) for row in night.skipped),
        *(of_impossible(row) for row in night.impossible),
    ]
    built = _built([due for due in night.due if due.ami_id is None], build)
    for due in night.due:
        name = due.recipe.name
        failed = built.get(name)
        if isinstance(failed, RowResult) and failed.action == "failed":
            results.append(replace(failed, line=due.recipe.channel_line))
            continue
        made = failed or RowResult(name, "built", due.why, ami_id=due.ami_id)
        made = replace(made, why=due.why, line=due.recipe.channel_line)
        began = time.monotonic()
        try:
            done = publish(due.recipe, str(made.ami_id))
        except KilnError as error:
            results.append(replace(made, action="failed", why=f"not published: {error.message}"))
            continue
        diff = comparison_of(compare, done.release.line, done.release.channel)
        results.append(
            replace(
                made,
                channel=done.release.channel,
                seconds=round((made.seconds or 0) + time.monotonic() - began, 1),
                changed=diff.grave if diff else (),
                verdict=done.release.verdict,
                diff=diff,
            )
        )
    return results


def _built(due: Sequence[Due], build: Callable[[list[Recipe]], Outcome]) -> dict[str, RowResult]:
    """The result of each row that had to be built."""
    if not due:
        return {}
    recipes = [row.recipe for row in due]
    why = {row.recipe.name: row.why for row in due}
    try:
        outcome = build(recipes)
    except KilnError as error:
        return {name: RowResult(name, "failed", error.message) for name in why}
    results: dict[str, RowResult] = {}
    for record in outcome.built:
        name = str(record.recipe["name"])
        results[name] = result_of(record, why[name])
    for name in why:
        if name not in results:
            reason = outcome.failures.get(name)
            results[name] = RowResult(
                name, "failed", reason.message if reason else "it was stopped"
            )
    return results
