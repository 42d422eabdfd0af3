"""Tasks of a night: build what has changed, publish it, report. The plan and the end of a night
stand alone, so that an engine can run the rows on machines of their own."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from invoke import Context

from kiln.cli.flags import JSON, PLACE, ROWS, TARGET, Selection, positive_number, selects_rows
from kiln.cli.front import note, report, show, task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.publish.nightly import Due, Night, RowResult

_REPORT = {
    "out": "folder of report.html, .md and .json: --out DIR (default: build/nightly/TIME)",
    "topic": "SNS topic that gets the report's first lines: --topic arn:aws:sns:…",
}


@task(
    name="nightly",
    default=True,
    help={
        **ROWS,
        **_REPORT,
        "max-cost": "start nothing if more US dollars are expected: --max-cost 40",
        **TARGET,
        **JSON,
    },
)
@selects_rows
def nightly_(
    c: Context,
    selection: Selection,
    out: str | None = None,
    topic: str | None = None,
    max_cost: str | None = None,
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
    from kiln.pipeline import record, verify
    from kiln.pipeline.plan import Options
    from kiln.publish import cost as costs
    from kiln.publish import nightly as nights
    from kiln.publish.lock import exclusively
    from kiln.publish.publish import Publication, publish_row

    recipes = _chosen(selection)
    settings = load.load_publishing()
    limit = positive_number(max_cost, "--max-cost") if max_cost is not None else None
    progress = Progress()
    place = builds.announce(recipes, Options(), targets.choose(target, region), progress.say)
    if place.preparation and place.gone():
        place.prepare([], progress.say)

    def build(due: list[Recipe]) -> builds.Outcome:
        return builds.build_recipes(
            due, Options(), place, progress, install=not no_install, on_failure=report
        )

    def publish(recipe: Recipe, ami_id: str) -> Publication:
        chosen = settings[recipe.name]
        if not any(one.ami_id == ami_id for one in record.all_of(recipe.name)):
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
        )

    with exclusively(place, nights.LOCK, nights.LOCK_SECONDS):
        night = nights.plan_night(recipes, settings, place)
        if limit is not None:
            baked = [due.recipe for due in night.due if due.ami_id is None]
            costs.require_below(baked, settings, place.region, limit)
        results = nights.run_night(night, build, publish)
    return _reported(results, place, out, topic, as_json=json)


@task(help={**ROWS, **PLACE, **JSON})
@selects_rows
def plan(
    c: Context,
    selection: Selection,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """What a night would do: one command for each row, which any machine can run."""
    from kiln.cli import targets
    from kiln.matrix import load
    from kiln.publish import choice
    from kiln.publish.nightly import plan_night

    recipes = _chosen(selection)
    place = choice.answering(targets.choose(target, region))
    night = plan_night(recipes, load.load_publishing(), place)
    data = {
        "items": [
            {"row": due.recipe.name, "command": _command(due, place), "why": due.why}
            for due in night.due
        ],
        "skipped": [{"row": one.row, "why": one.why} for one in night.skipped],
    }
    show(data, as_json=json, text=lambda plan: _plan_text(night, place))


@task(
    help={
        **ROWS,
        **_REPORT,
        **PLACE,
        **JSON,
    }
)
@selects_rows
def finish(
    c: Context,
    selection: Selection,
    out: str | None = None,
    topic: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """What a night's items have done, wherever they ran: a row that is still due has failed."""
    from kiln.cli import targets
    from kiln.matrix import load
    from kiln.publish import choice
    from kiln.publish.nightly import after_night, plan_night

    recipes = _chosen(selection)
    place = choice.answering(targets.choose(target, region))
    results = after_night(plan_night(recipes, load.load_publishing(), place))
    return _reported(results, place, out, topic, as_json=json)


@task(
    name="codebuild",
    help={
        **ROWS,
        **_REPORT,
        "project": "the CodeBuild project that runs an item: --project ami-kiln-nightly-worker",
        **PLACE,
        **JSON,
    },
)
@selects_rows
def codebuild_(
    c: Context,
    selection: Selection,
    project: str,
    out: str | None = None,
    topic: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """A night on CodeBuild: a build for each row that is due, then the report of nightly.finish."""
    from kiln.cli import targets
    from kiln.matrix import load
    from kiln.publish import choice
    from kiln.publish.codebuild import run_batch
    from kiln.publish.nightly import after_night, plan_night

    recipes, settings = _chosen(selection), load.load_publishing()
    place = choice.answering(targets.choose(target, region))
    night = plan_night(recipes, settings, place)
    commands = {due.recipe.name: _command(due, place) for due in night.due}
    if commands:
        run_batch(place, project, commands, note)
        # What is still due has failed, whatever CodeBuild says.
        night = plan_night(recipes, settings, place)
    return _reported(after_night(night, set(commands)), place, out, topic, as_json=json)


def _chosen(selection: Selection) -> list[Recipe]:
    """The rows that the flags select; all of them without one."""
    from kiln.matrix import load, select

    return select.select(load.load_recipes(), **{**selection, "every": True})


def _reported(
    results: list[RowResult], place: Target, out: str | None, topic: str | None, *, as_json: bool
) -> int:
    """Write, send and show the report of a night; the exit status."""
    from kiln.publish import night_report

    night_report.write(results, out)
    if topic:
        night_report.send(place, topic, results)
    show(
        [asdict(one) for one in results],
        as_json=as_json,
        text=lambda data: night_report.text(results),
    )
    return 1 if any(one.action == "failed" for one in results) else 0


def _command(due: Due, target: Target) -> str:
    """What a machine that shares nothing with this one runs for a row."""
    name, where = due.recipe.name, f"--target {target.kind} --region {target.region}"
    if due.ami_id:
        return (
            f"./invoke verify --ami {due.ami_id} {where} && "
            f"./invoke publish --name {name} --ami {due.ami_id} {where}"
        )
    return f"./invoke build --name {name} {where} && ./invoke publish --name {name} {where}"


def _plan_text(night: Night, target: Target) -> str:
    lines = [
        f"build  {due.recipe.name}: {due.why}\n       {_command(due, target)}" for due in night.due
    ]
    lines += [f"skip   {one.row}: {one.why}" for one in night.skipped]
    return "\n".join(lines)
