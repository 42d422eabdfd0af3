"""Tasks of a night: build what has changed, publish it, report. The plan and the end of a night
stand alone, so that an engine can run the rows on machines of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context

from kiln.cli.flags import (
    JSON,
    PLACE,
    RECORDS,
    ROWS,
    TARGET,
    Selection,
    account_help,
    positive_number,
    replaces_settings,
    selects_rows,
)
from kiln.cli.front import note, report, show, task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.pipeline.record import Record
    from kiln.pipeline.shared_records import Shelf
    from kiln.publish.night_results import RowResult
    from kiln.publish.pending_updates import Bring
    from kiln.publish.release_comparison import Comparison

# What the holder of the night's lock does.
NIGHT = "a night's rows are being built"
_REPORT = {
    "out": "folder of report.html, .md and .json: --out DIR (default: build/nightly/TIME)",
    "topic": "SNS topic that gets the report's first lines: --topic arn:aws:sns:…",
    "catalogue": "S3 place of the catalogue, made anew at the end: --catalogue s3://bucket/catalogue",
}


@task(
    name="nightly",
    default=True,
    help={
        **ROWS,
        **_REPORT,
        "max-cost": "start nothing if more US dollars are expected: --max-cost 40",
        **TARGET,
        **account_help(RECORDS),
        **JSON,
    },
)
@selects_rows
@replaces_settings(RECORDS)
def nightly_(
    c: Context,
    selection: Selection,
    aws_flags: dict[str, str],
    out: str | None = None,
    topic: str | None = None,
    catalogue: str | None = None,
    max_cost: str | None = None,
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    json: bool = False,
) -> int:
    """Build the rows whose inputs have changed, and publish them to the first channel."""
    from kiln.base.progress import Progress
    from kiln.cli import fetched_records, targets
    from kiln.matrix import load
    from kiln.pipeline import build as builds
    from kiln.pipeline import kept_records, shared_records, verify
    from kiln.pipeline.plan import Options
    from kiln.publish import cost as costs
    from kiln.publish import nightly as nights
    from kiln.publish.lock import exclusively
    from kiln.publish.night_plan import plan_night
    from kiln.publish.publish import Publication, publish_row

    recipes, sent = _chosen(selection), Sent(out, topic, catalogue, aws_flags).checked()
    settings = load.load_publishing()
    limit = positive_number(max_cost, "--max-cost") if max_cost is not None else None
    progress = Progress()
    place = targets.choose(target, region)
    records = {name: text for name, text in aws_flags.items() if name in RECORDS}
    options = Options(aws_flags={**records, "region": place.region})  # as plan_night plans
    place = builds.announce(recipes, options, place, progress.say)

    def build(due: list[Recipe]) -> builds.Outcome:
        return builds.build_recipes(
            due, options, place, progress, install=not no_install, on_failure=report
        )

    def publish(recipe: Recipe, ami_id: str) -> Publication:
        chosen = settings[recipe.name]
        shelf = fetched_records.shelf_for(aws_flags, place, recipe)
        if shelf:
            shared_records.bring_row(shelf, recipe.name, note)
        if not any(build.ami_id == ami_id for build in kept_records.all_of(recipe.name)):
            # Another machine built it: its verdict is not taken on trust.
            verify.smoke_test(install=not no_install)(place, ami_id)
        return publish_row(
            recipe,
            chosen,
            place,
            ami_id=ami_id,
            channel=chosen.channels[0],
            why="nightly",
            say=note,
            shelf=shelf,
        )

    with place.preparing(["a night"]):
        if place.preparation and place.gone():
            place = place.prepare([], progress.say)
        with exclusively(place, nights.LOCK, nights.LOCK_SECONDS, NIGHT):
            bring = _bringing(recipes, aws_flags, place)
            night = plan_night(recipes, settings, place, bring)
            if limit is not None:
                baked = [due.recipe for due in night.due if due.ami_id is None]
                costs.require_below(baked, settings, place.region, limit)
            results = nights.run_night(night, build, publish, _comparing(place, bring))
    return _reported(results, place, sent, as_json=json)


@task(help={**ROWS, **PLACE, **account_help(RECORDS), **JSON})
@selects_rows
@replaces_settings(RECORDS)
def plan(
    c: Context,
    selection: Selection,
    aws_flags: dict[str, str],
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """What a night would do: one command for each row, which any machine can run."""
    from kiln.cli import targets
    from kiln.cli.channel_tables import plan_text
    from kiln.cli.night_commands import commands_of
    from kiln.matrix import load
    from kiln.publish import line_flags
    from kiln.publish.night_plan import plan_night

    recipes = _chosen(selection)
    place = line_flags.answering(targets.choose(target, region))
    night = plan_night(recipes, load.load_publishing(), place, _bringing(recipes, aws_flags, place))
    commands = commands_of(night, place, aws_flags)
    data = {
        "items": [
            {
                "row": due.recipe.name,
                "command": commands[due.recipe.name],
                "why": due.why,
                "outdated": due.outdated,
            }
            for due in night.due
        ],
        "skipped": [
            {
                "row": row.row,
                "why": row.why,
                "ami_id": row.ami_id,
                "line": row.line,
                "channel": row.channel,
                "unknown": row.unknown,
            }
            for row in night.skipped
        ],
    }
    show(data, as_json=json, text=lambda plan: plan_text(night, commands))


@task(
    help={
        **ROWS,
        "plan": "what nightly.plan --json printed before the items ran: --plan plan.json",
        **_REPORT,
        **PLACE,
        **account_help(RECORDS),
        **JSON,
    }
)
@selects_rows
@replaces_settings(RECORDS)
def finish(
    c: Context,
    selection: Selection,
    aws_flags: dict[str, str],
    plan: str | None = None,
    out: str | None = None,
    topic: str | None = None,
    catalogue: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """What a night's items have done, wherever they ran: a row that is still due has failed."""
    from kiln.cli import targets
    from kiln.matrix import load
    from kiln.publish import line_flags
    from kiln.publish.night_end import after_night
    from kiln.publish.night_plan import plan_night, read_plan

    recipes, sent = _chosen(selection), Sent(out, topic, catalogue, aws_flags).checked()
    planned = read_plan(Path(plan)) if plan else None
    place = line_flags.answering(targets.choose(target, region))
    bring = _bringing(recipes, aws_flags, place)
    night = plan_night(recipes, load.load_publishing(), place, bring, planned)
    compare = _comparing(place, bring)
    results = after_night(night, planned or {}, _of_the_night(recipes, aws_flags, place), compare)
    return _reported(results, place, sent, as_json=json)


@task(
    name="codebuild",
    help={
        **ROWS,
        **_REPORT,
        "project": "the CodeBuild project that runs an item: --project ami-kiln-nightly-worker",
        **PLACE,
        **account_help(RECORDS),
        **JSON,
    },
)
@selects_rows
@replaces_settings(RECORDS)
def codebuild_(
    c: Context,
    selection: Selection,
    project: str,
    aws_flags: dict[str, str],
    out: str | None = None,
    topic: str | None = None,
    catalogue: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """A night on CodeBuild: a build for each row that is due, then the report of nightly.finish."""
    from kiln.cli import targets
    from kiln.cli.night_commands import commands_of
    from kiln.matrix import load
    from kiln.publish import line_flags
    from kiln.publish.codebuild import run_batch
    from kiln.publish.lock import exclusively
    from kiln.publish.night_end import after_night
    from kiln.publish.night_plan import Planned, plan_night
    from kiln.publish.nightly import LOCK, LOCK_SECONDS

    sent = Sent(out, topic, catalogue, aws_flags).checked()
    recipes, settings = _chosen(selection), load.load_publishing()
    place = line_flags.answering(targets.choose(target, region))
    bring = _bringing(recipes, aws_flags, place)
    with exclusively(place, LOCK, LOCK_SECONDS, NIGHT):
        night = plan_night(recipes, settings, place, bring)
        commands = commands_of(night, place, aws_flags)
        planned = {due.recipe.name: Planned(due.why, due.outdated) for due in night.due}
        if commands:
            run_batch(place, project, commands, note)
            # Rows that are still due have failed, whatever CodeBuild reports.
            night = plan_night(recipes, settings, place, bring, planned)
    compare = _comparing(place, bring)
    results = after_night(night, planned, _of_the_night(recipes, aws_flags, place), compare)
    return _reported(results, place, sent, as_json=json)


def _chosen(selection: Selection) -> list[Recipe]:
    """The rows that the flags select; all of them without one."""
    from kiln.matrix import load, select

    return select.select(load.load_recipes(), **{**selection, "every": True})


@dataclass(frozen=True)
class Sent:
    """Where the report of a night goes, and where the catalogue is (`--catalogue`)."""

    out: str | None
    topic: str | None
    catalogue: str | None
    aws_flags: Mapping[str, str]

    def checked(self) -> Sent:
        """The same. Raises KilnError (exit status 2) for a catalogue that is not in S3."""
        from kiln.catalogue.site import bucket_and_prefix

        if self.catalogue:
            bucket_and_prefix(self.catalogue, "--catalogue")
        return self


def _reported(results: list[RowResult], place: Target, sent: Sent, *, as_json: bool) -> int:
    """Write, send and show the report of a night, and renew the catalogue; the exit status."""
    from kiln.cli.catalogue_site import publish_catalogue
    from kiln.publish import line_flags, night_report

    night_report.write(results, sent.out)
    if sent.topic:
        night_report.send(place, sent.topic, results)
    if sent.catalogue:
        publish_catalogue(sent.catalogue, place, sent.aws_flags, line_flags.regions_to_show(None))
    show(
        [asdict(result) for result in results],
        as_json=as_json,
        text=lambda data: night_report.text(results),
    )
    return 1 if any(result.action == "failed" for result in results) else 0


def _of_the_night(
    recipes: Sequence[Recipe], aws_flags: Mapping[str, str], target: Target
) -> dict[str, Record]:
    """The newest build of each row, if it began in the last hours."""
    from kiln.cli import fetched_records
    from kiln.pipeline import shared_records
    from kiln.publish.night_end import builds_of_the_night

    shelves: dict[Shelf, list[str]] = {}
    for recipe in recipes:
        shelf = fetched_records.shelf_for(aws_flags, target, recipe)
        if shelf:
            shelves.setdefault(shelf, []).append(recipe.name)
    for shelf, rows in shelves.items():
        shared_records.bring_newest(shelf, rows, note, each=3)
    return builds_of_the_night([recipe.name for recipe in recipes])


def _bringing(recipes: Sequence[Recipe], aws_flags: Mapping[str, str], target: Target) -> Bring:
    """Fetches the records of runs that another machine did, where the rows have a bucket for
    them."""
    from kiln.cli import fetched_records
    from kiln.pipeline import shared_records

    by_name = {recipe.name: recipe for recipe in recipes}

    def bring(runs: Mapping[str, str]) -> None:
        shelves: dict[Shelf, dict[str, str]] = {}
        for row, run_id in runs.items():
            # The release before may be of a row that is not in the matrix any more.
            recipe = by_name.get(row)
            shelf = fetched_records.shelf_for(aws_flags, target, recipe)
            if shelf:
                shelves.setdefault(shelf, {})[row] = run_id
        for shelf, wanted in shelves.items():
            shared_records.bring_runs(shelf, wanted, note)

    return bring


def _comparing(target: Target, bring: Bring) -> Callable[[str, str], Comparison | None]:
    """What a channel of a line holds, beside what it held before."""
    from kiln.publish.release_comparison import compared

    return lambda line, channel: compared(target, line, channel, bring)
