"""Tasks of a night: build what has changed, publish it, report. The plan and the end of a night
stand alone, so that an engine can run the rows on machines of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import named_by
from kiln.cli.flags import (
    JSON,
    PLACE,
    RECORDS,
    ROWS,
    TARGET,
    Selection,
    account_help,
    replaces_settings,
    selects_rows,
)
from kiln.cli.front import note, report, show, task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.pipeline.records import RecordsBucket
    from kiln.publish.night_records import ShelfOf
    from kiln.publish.night_results import RowResult
    from kiln.publish.release_comparison import Bring, Comparison

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
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    json: bool = False,
) -> int:
    """Build the rows whose inputs have changed, and publish them to the first channel."""
    from kiln.base.progress import Progress
    from kiln.cli import targets
    from kiln.matrix import load
    from kiln.pipeline import build as builds
    from kiln.pipeline.plan import Options
    from kiln.pipeline.verify import smoke_test
    from kiln.publish import nightly as nights
    from kiln.publish.night_plan import plan_night
    from kiln.publish.night_publication import publish_built

    recipes, sent = _chosen(selection), Sent(out, topic, catalogue, aws_flags).checked()
    settings, progress = load.load_publishing(), Progress()
    place = targets.choose(target, region)
    records = {name: text for name, text in aws_flags.items() if name in RECORDS}
    options = Options(aws_flags={**records, "region": place.region})  # as plan_night plans
    place = builds.announce(recipes, options, place, progress.say)
    with place.hooks.preparing(["a night"]):
        if place.hooks.gone():
            place.hooks.prepare([], progress, install=not no_install, own_kernel=False)
        shelf_of, bring = _records(recipes, aws_flags, place)
        boot, install = smoke_test(install=not no_install), not no_install
        night = plan_night(recipes, settings, place)
        results = nights.run_night(
            night,
            build=lambda due: builds.build_recipes(
                due, options, place, progress, install=install, on_failure=report
            ),
            publish=lambda row, ami_id: publish_built(
                row,
                ami_id,
                settings[row.name],
                place,
                shelf_of=shelf_of,
                smoke_test=boot,
                say=note,
            ),
            compare=_comparing(place, bring),
        )
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
    from kiln.cli.night_commands import commands_of, plan_data
    from kiln.matrix import load
    from kiln.publish import line_flags
    from kiln.publish.night_plan import plan_night

    recipes = _chosen(selection)
    place = line_flags.answering(targets.choose(target, region))
    night = plan_night(recipes, load.load_publishing(), place)
    commands = commands_of(night, place, aws_flags)
    show(plan_data(night, commands), as_json=json, text=lambda data: plan_text(night, commands))


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
    from kiln.publish.night_records import newest_of_the_night

    recipes, sent = _chosen(selection), Sent(out, topic, catalogue, aws_flags).checked()
    planned = read_plan(Path(plan)) if plan else None
    place = line_flags.answering(targets.choose(target, region))
    shelf_of, bring = _records(recipes, aws_flags, place)
    night = plan_night(recipes, load.load_publishing(), place)
    compare = _comparing(place, bring)
    newest = newest_of_the_night(recipes, shelf_of, note)
    results = after_night(night, planned or {}, newest, compare)
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
    from kiln.publish.night_end import after_night
    from kiln.publish.night_plan import plan_night
    from kiln.publish.night_records import newest_of_the_night

    sent = Sent(out, topic, catalogue, aws_flags).checked()
    recipes, settings = _chosen(selection), load.load_publishing()
    place = line_flags.answering(targets.choose_aws(target, region, "nightly.codebuild"))
    shelf_of, bring = _records(recipes, aws_flags, place)
    night = plan_night(recipes, settings, place)
    commands = commands_of(night, place, aws_flags)
    planned = {due.recipe.name: due.why for due in night.due}
    if commands:
        run_batch(place, project, commands, note)
        # Rows that are still due have failed, whatever CodeBuild reports.
        night = plan_night(recipes, settings, place)
    compare = _comparing(place, bring)
    newest = newest_of_the_night(recipes, shelf_of, note)
    results = after_night(night, planned, newest, compare)
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
        """The same; the folder of `out` exists then. Raises KilnError (exit status 2) for a place
        that cannot be, which would otherwise be known when the night has ended."""
        from kiln.base import vocabulary
        from kiln.catalogue.site import bucket_and_prefix

        if self.out is not None:
            with named_by("--out"):
                Path(self.out).mkdir(parents=True, exist_ok=True)
        if self.topic is not None:
            vocabulary.TOPIC.required(self.topic, "--topic")
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


def _records(
    recipes: Sequence[Recipe], aws_flags: Mapping[str, str], target: Target
) -> tuple[ShelfOf, Bring]:
    """The buckets of records that the rows have, and what fetches records from them."""
    from kiln.cli.fetched_records import shelf_for
    from kiln.publish.night_records import bringing

    def shelf_of(recipe: Recipe | None) -> RecordsBucket | None:
        return shelf_for(aws_flags, target, recipe)

    return shelf_of, bringing(recipes, shelf_of, note)


def _comparing(target: Target, bring: Bring) -> Callable[[str, str], Comparison | None]:
    """What a channel of a line holds, beside what it held before."""
    from kiln.publish.release_comparison import compared

    return lambda line, channel: compared(target, line, channel, bring)
