"""Tasks that remove what nobody uses any more: retire, sweep. Both only show it without --apply."""

from __future__ import annotations

from dataclasses import asdict

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import JSON, PLACE
from kiln.cli.front import show, task


@task(
    help={
        "apply": "do the next step of each AMI that would go; otherwise nothing is changed",
        "regions": "instead of all that are published to: --regions eu-west-1,us-west-2",
        **PLACE,
        **JSON,
    }
)
def retire(
    c: Context,
    apply: bool = False,
    regions: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Which AMIs no channel holds and nothing uses; with --apply, their next step."""
    from kiln.cli import targets
    from kiln.cli.channel_tables import retirement_text
    from kiln.publish import lines
    from kiln.publish import retire as retiring
    from kiln.publish.regions import answering

    shown = lines.regions_to_show(regions)
    place = answering(targets.choose(target, region))
    if regions is None:
        shown = lines.with_published(shown, place)
    plan = retiring.plan_retirement(place, shown, lines.retire_settings(), ask=apply)
    if apply:
        plan = retiring.retire(place, plan)
    show(
        {
            "would": [asdict(step) for step in plan.would],
            "kept": [asdict(step) for step in plan.kept],
            "opened": plan.opened,
        },
        as_json=json,
        text=lambda data: retirement_text(plan, applied=apply),
    )
    return 1 if any(step.error for step in plan.would) else 0


@task(
    help={
        "apply": "remove what was found; otherwise nothing is changed",
        "run": "only what this run has left, however young: --run 20261121T031342Z-f94c",
        "older-than": "hours since the run began: --older-than 48 (default: 24)",
        "regions": "instead of all regions of the account: --regions eu-west-1,us-west-2",
        **PLACE,
        **JSON,
    }
)
def sweep(
    c: Context,
    apply: bool = False,
    run: str | None = None,
    older_than: int = 24,
    regions: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """What runs have left behind in any region, by their ids; with --apply, remove it."""
    from datetime import timedelta

    from kiln.base import vocabulary
    from kiln.cli import targets
    from kiln.cli.channel_tables import sweep_text
    from kiln.publish import sweep as sweeping
    from kiln.publish.regions import answering, named_regions

    if older_than < 1:
        raise KilnError(
            f"--older-than {older_than}: runs that began less than an hour ago may be at work",
            hint="give at least 1",
        )
    if run is not None:
        vocabulary.RUN_ID.required(run, "--run")
    named = named_regions(regions) if regions is not None else None
    place = answering(targets.choose(target, region))
    everywhere = named or sweeping.regions_of_account(place)
    left = sweeping.leftovers(place, everywhere, timedelta(hours=older_than), run)
    done = sweeping.sweep(place, left) if apply else []
    removed = [leftover for leftover in done if not leftover.error]
    show(
        {
            "found": [asdict(leftover) for leftover in left],
            "removed": [asdict(leftover) for leftover in removed],
            "failed": [asdict(leftover) for leftover in done if leftover.error],
        },
        as_json=json,
        text=lambda data: sweep_text(left, done, applied=apply),
    )
    return 1 if len(removed) < len(done) else 0
