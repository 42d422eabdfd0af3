"""Tasks of a night: build what has changed, publish it, report.

The plan and the end of a night stand alone, so that an engine can run the rows on machines of its
own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import named_by
from kiln.base.progress import Progress
from kiln.cli.launch import make_catalog
from kiln.cli.options import Place, RecordSettings, RoleSettings, Rows
from kiln.cli.output import log, output, table
from kiln.cli.task import Flags, task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.publish.lines import Line
    from kiln.publish.night import DueRow, RowResult
    from kiln.publish.promote import Moves


@dataclass(frozen=True)
class Report(Flags):
    """Report

    out: folder of report.html, .md and .json: --out DIR (default: build/nightly/TIME)
    topic: SNS topic that gets the report's first lines: --topic arn:aws:sns:…
    catalog: S3 prefix of the catalog to renew at the end: --catalog s3://bucket/catalog
    """

    out: str | None = None
    topic: str | None = None
    catalog: str | None = None

    def require_places(self) -> None:
        """Require a folder, a topic and a place in S3 that are possible."""

        if self.out is not None:
            with named_by("--out"):
                Path(self.out).mkdir(parents=True, exist_ok=True)
        vocabulary.TOPIC.optional(self.topic, "--topic")
        vocabulary.S3_PLACE.optional(self.catalog, "--catalog")

    def show(self, results: list[RowResult], target: Target, records: RecordSettings) -> int:
        """Write, send and print the report, and renew the catalog; return the exit status."""
        from kiln.base.paths import build_dir
        from kiln.publish import night
        from kiln.publish.lines import regions_to_show

        night.write_report(results, self.out)
        if self.topic:
            night.send_report(target, self.topic, results)
        if self.catalog:
            folder = build_dir() / "catalog"
            make_catalog(target, regions_to_show(None), records, folder, self.catalog)
        output(results, night.report_text(results))
        return 1 if any(result.action == "failed" for result in results) else 0


@task("Release")
def nightly(
    rows: Rows, report: Report, place: Place, no_install: bool = False, *, records: RecordSettings
) -> int:
    """Build rows whose inputs changed, publish and report.

    ./invoke nightly --topic arn:aws:sns:eu-central-1:111122223333:amis
    """
    from kiln.pipeline import build as builds
    from kiln.pipeline.plan import Options, announce
    from kiln.pipeline.verify import smoke_test
    from kiln.publish.night import plan_night, publish_built, run_night

    lines, install = _lines(rows, report), not no_install
    recipes, progress = [line.recipe for line in lines], Progress()
    target = place.choose()
    options = Options(aws_flags={**records, "region": target.region})  # as plan_night plans
    target = announce(recipes, options, target, progress.say)
    failed = functools.partial(log, error=True)

    def build(due: list[Recipe]) -> builds.Outcome:
        return builds.build_recipes(
            due, options, target, progress, install=install, on_failure=failed
        )

    def publish(line: Line, ami_id: str) -> Moves:
        bucket, boot = records.open_bucket(target, line.recipe), smoke_test(install=install)
        return publish_built(line, ami_id, target, bucket=bucket, smoke_test=boot, say=log)

    with target.hooks.prepared("a night", [], progress):
        results = run_night(plan_night(lines, target), build, publish)
    return report.show(results, target, records)


@task("Release", "nightly.plan")
def plan(rows: Rows, place: Place, records: RecordSettings) -> None:
    """Show a nightly run's builds, one command per row."""
    from kiln.publish.night import plan_night

    lines = _lines(rows)
    target = place.choose_running()
    due = plan_night(lines, target)
    commands = commands_of(due, target, records)
    cells = [(row.action, row.name, row.why) for row in due]
    output(plan_data(due, commands), table((), cells), *commands.values())


@task("Release", "nightly.finish")
def finish(
    rows: Rows, report: Report, place: Place, plan: str | None = None, *, records: RecordSettings
) -> int:
    """Report a nightly run whose builds ran elsewhere.

    plan: what nightly.plan --json printed before the items ran: --plan plan.json
    """
    from kiln.publish.night import read_plan

    lines = _lines(rows, report)
    planned = read_plan(Path(plan)) if plan else {}
    return _end(lines, planned, report, place.choose_running(), records)


@task("Release", "nightly.codebuild")
def run_on_codebuild(
    project: str, *, rows: Rows, report: Report, place: Place, records: RecordSettings
) -> int:
    """Run nightly builds on CodeBuild, one per due row.

    project: the CodeBuild project that runs an item: --project ami-kiln-nightly-worker
    """
    from kiln.publish.codebuild import run_batch
    from kiln.publish.night import plan_night
    from kiln.publish.regions import answering

    lines = _lines(rows, report)
    target = answering(place.choose_aws("nightly.codebuild"))
    due = [row for row in plan_night(lines, target) if row.due]
    if commands := commands_of(due, target, records):
        run_batch(target, project, commands, log)
    # Rows that are still due have failed, whatever CodeBuild reports.
    return _end(lines, {row.name: row.why for row in due}, report, target, records)


def _lines(rows: Rows, report: Report | None = None) -> list[Line]:
    """Return the lines of the rows that the flags select, all of them without one. The places of
    the report are required to exist now, and not when the night has ended."""
    from kiln.matrix import load
    from kiln.publish.lines import Line

    recipes, settings = rows.select(), load.load_publishing()
    if report:
        report.require_places()
    return [Line(recipe, settings[recipe.name]) for recipe in recipes]


def _end(
    lines: Sequence[Line],
    planned: Mapping[str, str],
    report: Report,
    target: Target,
    records: RecordSettings,
) -> int:
    """Report what the rows of a night have done; return the exit status."""
    from kiln.publish.night import finish_night, newest_builds, plan_night

    rows, recipes = plan_night(lines, target), [line.recipe for line in lines]
    newest = newest_builds(recipes, lambda recipe: records.open_bucket(target, recipe), log)
    return report.show(finish_night(rows, planned, newest), target, records)


def commands_of(rows: Sequence[DueRow], target: Target, records: RecordSettings) -> dict[str, str]:
    """Return what a machine that shares nothing with this one runs for each row that is due."""
    from kiln.pipeline.records import all_of

    commands = {}
    for row in (row for row in rows if row.due):
        where = f"--target {target.kind} --region {target.region}"
        if bucket := records.open_bucket(target, row.line.recipe):
            where += f" --records-bucket {bucket.name}"
        if row.ami_id:
            command = f"./invoke publish --name {row.name} --ami {row.ami_id} {where}"
            kept = bucket.fetch_row(row.name, log) if bucket else ()
            shared = [build for build in all_of(row.name) if build.run_id in kept]
            if all(build.ami_id != row.ami_id or build.status != "verified" for build in shared):
                command = f"./invoke verify --ami {row.ami_id} {where} && {command}"
        else:
            build_it = f"./invoke build --name {row.name} {where}"
            command = f"{build_it} && ./invoke publish --name {row.name} {where}"
        commands[row.name] = command
    return commands


def plan_data(rows: Sequence[DueRow], commands: Mapping[str, str]) -> dict[str, Any]:
    """Return a night's plan as `nightly.plan --json` prints it and `nightly.finish` reads it."""
    kinds: dict[str, list[dict[str, Any]]] = {"items": [], "skipped": [], "impossible": []}
    for row in rows:
        entry: dict[str, Any] = {"row": row.name, "why": row.why}
        if row.due:
            kinds["items"].append({**entry, "command": commands[row.name]})
        elif row.action == "skip":
            held = {"ami_id": row.ami_id, "line": row.line.name, "channel": row.channel}
            kinds["skipped"].append({**entry, **held})
        else:
            kinds["impossible"].append(entry)
    return kinds


@task("Release", "deploy.codebuild")
def deploy_codebuild(
    repository: str | None = None,
    stack: str = "ami-kiln-nightly",
    revision: str | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    rows: str | None = None,
    image: str | None = None,
    email: str | None = None,
    delete: bool = False,
    *,
    place: Place,
    roles: RoleSettings,
) -> None:
    """Create or update the CodeBuild stack for nightly runs.

    repository: Git repository with amis.yaml, needed the first time: --repository https://git.example.com/amis
    stack: the stack's name: --stack ami-kiln-nightly
    revision: branch or commit that is built: --revision main
    schedule: EventBridge Scheduler expression: --schedule 'cron(0 2 * * ? *)'
    timezone: time zone of the schedule: --timezone Europe/Berlin
    rows: flags that select rows: --rows='--distro al2023'
    image: build image (default: CodeBuild's own): --image REGISTRY/kiln:1
    email: email address for nightly reports: --email team@example.com
    delete: remove the stack; its bucket stays
    """
    from kiln.cloud import stacks
    from kiln.matrix.flags import setting
    from kiln.matrix.load import default_account
    from kiln.publish.codebuild import CODEBUILD_TEMPLATE

    vocabulary.STACK.required(stack, "--stack")
    target = place.choose_aws("deploy.codebuild")
    log(target)
    if delete:
        gone = stacks.remove_stack(target, stack, log)
        text = f"{stack} is gone" if gone else f"there is no stack {stack}"
        output({"stack": stack, "deleted": gone}, text)
        return
    account = default_account()
    flags = {
        "Repository": repository,
        "Revision": revision,
        "Schedule": schedule,
        "Timezone": timezone,
        "Rows": rows,
        "Email": email,
        "Image": image,
        "PermissionsBoundary": setting("permissions_boundary", account, roles),
    }
    parameters = {name: value for name, value in flags.items() if value is not None}
    outputs = stacks.deploy_stack(
        target, stack, CODEBUILD_TEMPLATE.read_text(), parameters, log, tags=account.tags
    )
    output({"stack": stack, "outputs": outputs}, table((), list(outputs.items())))
