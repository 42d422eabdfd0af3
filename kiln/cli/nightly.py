"""Tasks of a night: build what has changed, publish it, report.

The plan and the end of a night stand alone, so that an engine can run the rows on machines of its
own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError
from kiln.base.output_file import named_by
from kiln.cli.launch import publish_catalogue
from kiln.cli.options import Place, RecordSettings, Rows
from kiln.cli.output import log, output
from kiln.cli.task import Flags, task

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import Target
    from kiln.pipeline.records import RecordsBucket
    from kiln.publish.night_plan import Due, Night
    from kiln.publish.night_records import ShelfOf
    from kiln.publish.night_results import RowResult
    from kiln.publish.release_comparison import Bring, Comparison


@dataclass(frozen=True)
class Report(Flags):
    """Report

    out: folder of report.html, .md and .json: --out DIR (default: build/nightly/TIME)
    topic: SNS topic that gets the report's first lines: --topic arn:aws:sns:…
    catalogue: S3 place of the catalogue, made anew at the end: --catalogue s3://bucket/catalogue
    """

    out: str | None = None
    topic: str | None = None
    catalogue: str | None = None

    def require_places(self) -> None:
        """Require places that can be: otherwise it would be known when the night has ended."""
        from kiln.base import vocabulary
        from kiln.catalogue.site import bucket_and_prefix

        if self.out is not None:
            with named_by("--out"):
                Path(self.out).mkdir(parents=True, exist_ok=True)
        if self.topic is not None:
            vocabulary.TOPIC.required(self.topic, "--topic")
        if self.catalogue:
            bucket_and_prefix(self.catalogue, "--catalogue")

    def show(self, results: list[RowResult], target: Target, records: RecordSettings) -> int:
        """Write, send and print the report, and renew the catalogue; return the exit status."""
        from kiln.publish import line_flags, night_report

        night_report.write(results, self.out)
        if self.topic:
            night_report.send(target, self.topic, results)
        if self.catalogue:
            publish_catalogue(self.catalogue, target, records, line_flags.regions_to_show(None))
        output([asdict(result) for result in results], night_report.text(results))
        return 1 if any(result.action == "failed" for result in results) else 0


@task("Release")
def nightly(
    rows: Rows,
    report: Report,
    place: Place,
    no_install: bool = False,
    *,
    records: RecordSettings,
) -> int:
    """Build rows whose inputs changed, publish and report.

    ./invoke nightly --topic arn:aws:sns:eu-central-1:111122223333:amis
    """
    from kiln.base.progress import Progress
    from kiln.matrix import load
    from kiln.pipeline import build as builds
    from kiln.pipeline.plan import Options
    from kiln.pipeline.verify import smoke_test
    from kiln.publish import nightly as nights
    from kiln.publish.night_plan import plan_night
    from kiln.publish.night_publication import publish_built

    recipes = rows.select(every=True)
    report.require_places()
    settings, progress = load.load_publishing(), Progress()
    target = place.choose()
    options = Options(aws_flags={**records, "region": target.region})  # as plan_night plans
    target = builds.announce(recipes, options, target, progress.say)
    with target.hooks.preparing(["a night"]):
        if target.hooks.gone():
            target.hooks.prepare([], progress, install=not no_install, own_kernel=False)
        shelf_of, bring = _records(recipes, records, target)
        boot, install = smoke_test(install=not no_install), not no_install
        night = plan_night(recipes, settings, target)
        results = nights.run_night(
            night,
            build=lambda due: builds.build_recipes(
                due,
                options,
                target,
                progress,
                install=install,
                on_failure=functools.partial(log, error=True),
            ),
            publish=lambda row, ami_id: publish_built(
                row,
                ami_id,
                settings[row.name],
                target,
                shelf_of=shelf_of,
                smoke_test=boot,
                say=log,
            ),
            compare=_comparing(target, bring),
        )
    return report.show(results, target, records)


@task("Release", "nightly.plan")
def plan(rows: Rows, place: Place, records: RecordSettings) -> None:
    """Show what a night would do, one command a row."""
    from kiln.matrix import load
    from kiln.publish.night_plan import plan_night

    recipes = rows.select(every=True)
    target = place.choose_running()
    night = plan_night(recipes, load.load_publishing(), target)
    commands = commands_of(night, target, records)
    output(plan_data(night, commands), plan_text(night, commands))


@task("Release", "nightly.finish")
def finish(
    rows: Rows, report: Report, place: Place, plan: str | None = None, *, records: RecordSettings
) -> int:
    """Report what a night's items did, wherever they ran.

    plan: what nightly.plan --json printed before the items ran: --plan plan.json
    """
    from kiln.publish.night_plan import read_plan

    recipes = rows.select(every=True)
    report.require_places()
    planned = read_plan(Path(plan)) if plan else {}
    return _end(recipes, planned, report, place.choose_running(), records)


@task("Release", "nightly.codebuild")
def run_on_codebuild(
    project: str, *, rows: Rows, report: Report, place: Place, records: RecordSettings
) -> int:
    """Run a night on CodeBuild, a build for each due row.

    project: the CodeBuild project that runs an item: --project ami-kiln-nightly-worker
    """
    from kiln.matrix import load
    from kiln.publish import line_flags
    from kiln.publish.codebuild import run_batch
    from kiln.publish.night_plan import plan_night

    report.require_places()
    recipes = rows.select(every=True)
    target = line_flags.answering(place.choose_aws("nightly.codebuild"))
    night = plan_night(recipes, load.load_publishing(), target)
    if commands := commands_of(night, target, records):
        run_batch(target, project, commands, log)
    # Rows that are still due have failed, whatever CodeBuild reports.
    return _end(recipes, {due.recipe.name: due.why for due in night.due}, report, target, records)


def _end(
    recipes: Sequence[Recipe],
    planned: Mapping[str, str],
    report: Report,
    target: Target,
    records: RecordSettings,
) -> int:
    """Report what the rows of a night have done; return the exit status."""
    from kiln.matrix import load
    from kiln.publish.night_end import after_night
    from kiln.publish.night_plan import plan_night
    from kiln.publish.night_records import newest_of_the_night

    shelf_of, bring = _records(recipes, records, target)
    night = plan_night(recipes, load.load_publishing(), target)
    newest = newest_of_the_night(recipes, shelf_of, log)
    results = after_night(night, planned, newest, _comparing(target, bring))
    return report.show(results, target, records)


def _records(
    recipes: Sequence[Recipe], records: RecordSettings, target: Target
) -> tuple[ShelfOf, Bring]:
    """Return the buckets of records that the rows have, and what fetches records from them."""
    from kiln.publish.night_records import bringing

    def shelf_of(recipe: Recipe | None) -> RecordsBucket | None:
        return records.shelf(target, recipe)

    return shelf_of, bringing(recipes, shelf_of, log)


def _comparing(target: Target, bring: Bring) -> Callable[[str, str], Comparison | None]:
    """Return what compares a channel's image with the one before."""
    from kiln.publish.release_comparison import compared

    return lambda line, channel: compared(target, line, channel, bring)


def commands_of(night: Night, target: Target, records: RecordSettings) -> dict[str, str]:
    """Return what a machine that shares nothing with this one runs for each row that is due."""
    return {
        due.recipe.name: _command(due, target, records.shelf(target, due.recipe))
        for due in night.due
    }


def _command(due: Due, target: Target, shelf: RecordsBucket | None) -> str:
    from kiln.pipeline import records

    name, where = due.recipe.name, f"--target {target.kind} --region {target.region}"
    if shelf:
        where += f" --records-bucket {shelf.bucket}"
    if not due.ami_id:
        return f"./invoke build --name {name} {where} && ./invoke publish --name {name} {where}"
    publish = f"./invoke publish --name {name} --ami {due.ami_id} {where}"
    kept = shelf.fetch_row(name, log) if shelf else ()
    if any(
        build.run_id in kept and build.ami_id == due.ami_id and build.status == "verified"
        for build in records.all_of(name)
    ):
        return publish
    return f"./invoke verify --ami {due.ami_id} {where} && {publish}"


def plan_data(night: Night, commands: Mapping[str, str]) -> dict[str, Any]:
    """Return a night's plan as `nightly.plan --json` prints it and `nightly.finish` reads it."""
    return {
        "items": [
            {"row": due.recipe.name, "command": commands[due.recipe.name], "why": due.why}
            for due in night.due
        ],
        "skipped": [
            {
                "row": row.row,
                "why": row.why,
                "ami_id": row.ami_id,
                "line": row.line,
                "channel": row.channel,
            }
            for row in night.skipped
        ],
        "impossible": [{"row": row.recipe.name, "why": row.why} for row in night.impossible],
    }


def plan_text(night: Night, commands: Mapping[str, str]) -> str:
    """Return what is due in a night, each with its reason and command, and what is not."""
    lines = [
        f"build  {due.recipe.name}: {due.why}\n       {commands[due.recipe.name]}"
        for due in night.due
    ]
    lines += [f"skip   {row.row}: {row.why}" for row in night.skipped]
    lines += [f"fail   {row.recipe.name}: {row.why}" for row in night.impossible]
    return "\n".join(lines)


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
    permissions_boundary: str | None = None,
    delete: bool = False,
    *,
    place: Place,
) -> None:
    """Create or update the stack that runs nights on CodeBuild.

    repository: of amis.yaml, needed the first time: --repository https://git.example.com/amis
    stack: the stack's name: --stack ami-kiln-nightly
    revision: branch or commit that is built: --revision main
    schedule: when, as EventBridge Scheduler writes it: --schedule 'cron(0 2 * * ? *)'
    timezone: of the schedule: --timezone Europe/Berlin
    rows: flags that select rows: --rows='--distro al2023'
    image: what builds run in, otherwise CodeBuild's own: --image REGISTRY/kiln:1
    email: who gets the report of a night: --email team@example.com
    permissions_boundary: of the stack's roles, otherwise that of `aws` in amis.yaml:
      --permissions-boundary arn:aws:iam::111122223333:policy/teams
    delete: remove the stack; its bucket stays
    """
    from kiln.base import vocabulary
    from kiln.cloud import stacks
    from kiln.matrix.load import default_account
    from kiln.publish import engines

    vocabulary.STACK.required(stack, "--stack")
    target = place.choose_aws("deploy.codebuild")
    log(target)
    if delete:
        gone = stacks.remove_stack(target, stack, log)
        text = f"{stack} is gone" if gone else f"there is no stack {stack}"
        output({"stack": stack, "deleted": gone}, text)
        return
    if permissions_boundary:
        vocabulary.POLICY_ARN.required(permissions_boundary, "--permissions-boundary")
    if repository is not None and not repository.startswith("https://"):
        raise KilnError(f"--repository {repository} is not an HTTPS address")
    account = default_account()
    flags = {
        "Repository": repository,
        "Revision": revision,
        "Schedule": schedule,
        "Timezone": timezone,
        "Rows": rows,
        "Email": email,
        "Image": image,
        "PermissionsBoundary": permissions_boundary or account.permissions_boundary,
    }
    parameters = {name: value for name, value in flags.items() if value is not None}
    outputs = stacks.deploy_stack(
        target, stack, engines.codebuild_template(), parameters, log, tags=account.tags
    )
    text = "\n".join(f"{name:8} {value}" for name, value in outputs.items())
    output({"stack": stack, "outputs": outputs}, text)
