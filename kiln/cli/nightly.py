"""Tasks of a night: build what has changed, publish it, report. The plan and the end of a night
stand alone, so that an engine can run the rows on machines of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.output_file import named_by
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
    from kiln.publish.lines import Line
    from kiln.publish.night import Compare, ShelfOf
    from kiln.publish.report import RowResult

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
    from kiln.pipeline import build as builds
    from kiln.pipeline.plan import Options
    from kiln.pipeline.verify import smoke_test
    from kiln.publish.due import plan_night
    from kiln.publish.night import publish_built, run_night

    lines, sent = _chosen(selection), Sent(out, topic, catalogue, aws_flags).checked()
    recipes, progress = [line.recipe for line in lines], Progress()
    place = targets.choose(target, region)
    records = {name: text for name, text in aws_flags.items() if name in RECORDS}
    options = Options(aws_flags={**records, "region": place.region})  # as plan_night plans
    place = builds.announce(recipes, options, place, progress.say)
    with place.hooks.preparing(["a night"]):
        if place.hooks.gone():
            place.hooks.prepare([], progress, install=not no_install, own_kernel=False)
        shelf_of, compare = _records(lines, aws_flags, place)
        boot, install = smoke_test(install=not no_install), not no_install
        results = run_night(
            plan_night(lines, place),
            build=lambda due: builds.build_recipes(
                due, options, place, progress, install=install, on_failure=report
            ),
            publish=lambda line, ami_id: publish_built(
                line,
                ami_id,
                place,
                shelf=shelf_of(line.recipe),
                smoke_test=boot,
                say=note,
            ),
            compare=compare,
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
    from kiln.publish.due import plan_night
    from kiln.publish.regions import answering

    lines = _chosen(selection)
    place = answering(targets.choose(target, region))
    rows = plan_night(lines, place)
    commands = commands_of(rows, place, aws_flags)
    show(plan_data(rows, commands), as_json=json, text=lambda data: plan_text(rows, commands))


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
    from kiln.publish.due import plan_night
    from kiln.publish.night import finish_night, newest_builds, read_plan
    from kiln.publish.regions import answering

    lines, sent = _chosen(selection), Sent(out, topic, catalogue, aws_flags).checked()
    planned = read_plan(Path(plan)) if plan else {}
    place = answering(targets.choose(target, region))
    shelf_of, compare = _records(lines, aws_flags, place)
    rows = plan_night(lines, place)
    newest = newest_builds([line.recipe for line in lines], shelf_of, note)
    results = finish_night(rows, planned, newest, compare)
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
    from kiln.publish.codebuild import run_batch
    from kiln.publish.due import plan_night
    from kiln.publish.night import finish_night, newest_builds
    from kiln.publish.regions import answering

    sent = Sent(out, topic, catalogue, aws_flags).checked()
    lines = _chosen(selection)
    place = answering(targets.choose_aws(target, region, "nightly.codebuild"))
    shelf_of, compare = _records(lines, aws_flags, place)
    rows = plan_night(lines, place)
    commands = commands_of(rows, place, aws_flags)
    planned = {row.name: row.why for row in rows if row.due}
    if commands:
        run_batch(place, project, commands, note)
        # Rows that are still due have failed, whatever CodeBuild reports.
        rows = plan_night(lines, place)
    newest = newest_builds([line.recipe for line in lines], shelf_of, note)
    results = finish_night(rows, planned, newest, compare)
    return _reported(results, place, sent, as_json=json)


def _chosen(selection: Selection) -> list[Line]:
    """The rows that the flags select; all of them without one."""
    from kiln.matrix import load, select
    from kiln.publish.lines import Line

    settings = load.load_publishing()
    recipes = select.select(load.load_recipes(), **{**selection, "every": True})
    return [Line(recipe, settings[recipe.name]) for recipe in recipes]


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
    from kiln.publish import report
    from kiln.publish.lines import regions_to_show

    report.write(results, sent.out)
    if sent.topic:
        report.send(place, sent.topic, results)
    if sent.catalogue:
        publish_catalogue(sent.catalogue, place, sent.aws_flags, regions_to_show(None))
    show(
        [asdict(result) for result in results],
        as_json=as_json,
        text=lambda data: report.report_text(results),
    )
    return 1 if any(result.action == "failed" for result in results) else 0


def _records(
    lines: Sequence[Line], aws_flags: Mapping[str, str], target: Target
) -> tuple[ShelfOf, Compare]:
    """The bucket of records that a row has, and what compares what a channel of a line holds with
    what it held before, by records from there."""
    from kiln.cli.fetched_records import shelf_for
    from kiln.publish.night import record_fetcher
    from kiln.publish.report import compare_with_former

    def shelf_of(recipe: Recipe | None) -> RecordsBucket | None:
        return shelf_for(aws_flags, target, recipe)

    bring = record_fetcher([line.recipe for line in lines], shelf_of, note)
    return shelf_of, lambda line, channel: compare_with_former(target, line, channel, bring)
