"""`nightly`: builds the rows whose inputs have changed, publishes them, reports.

The tags of a row's AMI say what it was built from, so every machine decides alike.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from kiln.base.errors import KilnError
from kiln.base.paths import build_dir
from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST, RECIPE, RECIPE_DIGEST, SOURCE_AMI, VERIFIED, says_verified
from kiln.base.templates import render
from kiln.base.vocabulary import as_stamp, printable, read_time, utc_now
from kiln.cloud import aws
from kiln.cloud.images import Image, ParentNotFoundError, own_images, parent_finder
from kiln.cloud.target import Target
from kiln.pipeline import plan as planning
from kiln.pipeline.build import Outcome
from kiln.pipeline.plan import Options, Plan, run_usd
from kiln.pipeline.record import Record, document
from kiln.pipeline.records import RecordsBucket, all_of
from kiln.publish import channels
from kiln.publish.channels import Held
from kiln.publish.lines import Line
from kiln.publish.promote import Moves
from kiln.publish.publish import publish_row
from kiln.publish.regions import Say

# A night may take long; an earlier build belongs to the night before.
_LONGEST = timedelta(hours=12)
# In characters and in bytes: https://docs.aws.amazon.com/sns/latest/api/API_Publish.html
_SUBJECT, _MESSAGE = 100, 262144


# What is due


@dataclass(frozen=True)
class DueRow:
    """Action of a night on a row, and the reason.

    `ami_id` is the AMI to publish, or of a skipped row the one that its channel holds. A row fails
    whose parent AMI is not there.
    """

    line: Line
    action: Literal["build", "publish", "skip", "fail"]
    why: str
    ami_id: str | None = None
    verdict: str | None = None

    @property
    def due(self) -> bool:
        """True if the row is built or published."""
        return self.action in ("build", "publish")

    @property
    def name(self) -> str:
        """The row's name."""
        return self.line.recipe.name

    @property
    def channel(self) -> str:
        """The first channel of its line."""
        return self.line.settings.channels[0]


def plan_night(lines: Iterable[Line], target: Target) -> list[DueRow]:
    """Return what a night does with each row; starts nothing.

    A night has one region, the target's: where its rows are built, and where it looks for what was
    built. Each parent AMI is looked up once; images and channels are listed once.
    """
    images = own_images(target)
    held = {(holding.line, holding.channel): holding for holding in channels.all_held(target)}
    find, options = parent_finder(), Options(aws_flags={"region": target.region})
    rows = []
    for line in lines:
        try:
            plan = planning.plan_build(line.recipe, target, options, find=find)
        except ParentNotFoundError as error:
            rows.append(DueRow(line, "fail", error.message))
            continue
        rows.append(_due(line, plan, images, held.get((line.name, line.settings.channels[0]))))
    return rows


def _due(line: Line, plan: Plan, images: Sequence[Image], held: Held | None) -> DueRow:
    name, first = line.recipe.name, line.settings.channels[0]
    verified = [
        image
        for image in images
        if image.tags.get(RECIPE) == name
        and says_verified(image.tags.get(VERIFIED))
        and image.state == "available"
    ]
    if not verified:
        return DueRow(line, "build", "it has no verified AMI")
    newest = max(verified, key=lambda image: image.created)
    ami_id, age = newest.ami_id, utc_now() - newest.created
    if newest.tags.get(INPUT_DIGEST) != plan.input_digest:
        why = f"its inputs have changed since {ami_id}: {_changed(plan, newest)}"
        return DueRow(line, "build", why)
    if age > timedelta(days=line.settings.max_age):
        why = f"{ami_id} is {age.days} days old, more than {line.settings.max_age}"
        return DueRow(line, "build", why)
    if held is None or held.image_id != ami_id or held.moving:
        release = held.release if held and not held.moving else None
        at = release.moved.at if release and release.moved.action == "rollback" else ""
        if held and release and at and read_time(at) > newest.created:
            why = (
                f"{first} was rolled back to {held.image_id} at {at}, after {ami_id} was built, "
                f"which is not published again: ./invoke publish --name {name} does that"
            )
            return DueRow(line, "skip", why, held.image_id, release.verdict)
        return DueRow(line, "publish", f"{ami_id}, built before, was not in {first} yet", ami_id)
    why = f"{ami_id} has the same inputs and is {age.days} days old"
    return DueRow(line, "skip", why, ami_id, newest.tags.get(VERIFIED))


def _changed(plan: Plan, image: Image) -> str:
    """Return which inputs differ from those that the image's tags name."""
    recipe = image.tags.get(RECIPE_DIGEST) != plan.recipe_digest
    before, now = image.tags.get(SOURCE_AMI), plan.source.ami_id
    words = ["the recipe, the lock or a script"] if recipe else []
    if before != now:
        words.append(f"the parent AMI ({before or 'unknown'} → {now})")
    return " and ".join(words) or "the package snapshot"


# The night


@dataclass(frozen=True)
class RowResult:
    """Result of a row.

    `seconds` of its build and its publication; None where neither began here. `usd` is the list
    price of its instances, None if it is not known. `verdict` is the value of the AMI's tag
    `kiln:verified`. `changed` is what differs gravely from the release before, as `promote` says
    it; empty for a row that another machine has published.
    """

    row: str
    action: Literal["built", "skipped", "failed"]
    why: str
    ami_id: str | None = None
    line: str | None = None
    channel: str | None = None
    seconds: float | None = None
    checks: str | None = None
    changed: tuple[str, ...] = ()
    usd: float | None = None
    verdict: str | None = None


def run_night(
    rows: Sequence[DueRow],
    build: Callable[[list[Recipe]], Outcome],
    publish: Callable[[Line, str], Moves],
) -> list[RowResult]:
    """Build and publish what is due; one row's failure stops no other.

    `build` builds recipes; `publish` publishes an AMI of a line to its first channel.
    """
    results = [_untouched(row) for row in rows if not row.due]
    built = _built([row for row in rows if row.action == "build"], build)
    for row in rows:
        if row.due:
            made = built.get(row.name) or _result(row, "built", ami_id=row.ami_id)
            results.append(_published(row, made, publish) if made.action == "built" else made)
    return results


def _built(
    rows: Sequence[DueRow], build: Callable[[list[Recipe]], Outcome]
) -> dict[str, RowResult]:
    """Return the result of each row's build."""
    if not rows:
        return {}
    try:
        outcome = build([row.line.recipe for row in rows])
    except KilnError as error:
        return {row.name: _result(row, "failed", error.message) for row in rows}
    records = {record.recipe.name: record for record in outcome.built}
    results = {}
    for row in rows:
        failure, record = outcome.failures.get(row.name), records.get(row.name)
        why = failure.message if failure else "it was stopped"
        results[row.name] = _recorded_result(row, record) if record else _result(row, "failed", why)
    return results


def _published(row: DueRow, made: RowResult, publish: Callable[[Line, str], Moves]) -> RowResult:
    began = time.monotonic()
    try:
        done = publish(row.line, str(made.ami_id))
    except KilnError as error:
        return replace(made, action="failed", why=f"not published: {error.message}")
    seconds, release = (made.seconds or 0) + time.monotonic() - began, done.release
    made = replace(made, channel=release.channel, verdict=release.verdict, changed=done.changed)
    return replace(made, seconds=round(seconds, 1))


def finish_night(
    rows: Sequence[DueRow], planned: Mapping[str, str], records: Mapping[str, Record]
) -> list[RowResult]:
    """Return what became of a night's rows when its items have ended, wherever they ran: what is
    still due has failed, and what was `planned` (row → why) and is not due any longer was built.

    `records` are those of the night's builds, by row.
    """
    results = []
    for row in rows:
        record = records.get(row.name)
        result = _untouched(row)
        if row.action == "skip":
            ours = record if record and record.ami_id == row.ami_id else None
            if ours or row.name in planned:
                made = _recorded_result(row, ours) if ours else result
                result = replace(result, action="built", why=planned.get(row.name, row.why))
                result = replace(result, seconds=made.seconds, checks=made.checks, usd=made.usd)
        elif row.due and record and record.status != "verified":
            result = _recorded_result(row, record)
        results.append(result)
    return results


def _result(row: DueRow, action: str, why: str = "", **more: Any) -> RowResult:
    return RowResult(row.name, action, why or row.why, line=row.line.name, **more)  # type: ignore[arg-type]


def _untouched(row: DueRow) -> RowResult:
    """Return the result of a row for which nothing was done: failed unless it was skipped."""
    if row.action != "skip":
        return _result(row, "failed", ami_id=row.ami_id)
    return _result(row, "skipped", ami_id=row.ami_id, channel=row.channel, verdict=row.verdict)


def _recorded_result(row: DueRow, record: Record) -> RowResult:
    """Return what the record of a build says of its row."""
    checks, seconds = record.checks, record.seconds
    counts = f"{checks.passed} passed, {checks.failed} failed" if checks else None
    succeeded = record.status == "verified" and not record.left
    because = record.error or (f"its checks: {counts}" if counts else "it was not verified")
    return _result(
        row,
        "built" if succeeded else "failed",
        "" if succeeded else because,
        ami_id=record.ami_id,
        seconds=round(sum(seconds.values()), 1) if seconds else None,
        checks=counts,
        usd=run_usd(seconds, record.instance_type, record.verify_instance_type),
    )


def publish_built(
    line: Line,
    ami_id: str,
    target: Target,
    *,
    bucket: RecordsBucket | None,
    smoke_test: Callable[[Target, str], None],
    say: Say,
) -> Moves:
    """Publish an AMI that a night has built. One that another machine built has to pass
    `smoke_test` first, since that machine's verdict is not taken on trust."""
    if bucket:
        bucket.fetch_row(line.recipe.name, say)
    if all(build.ami_id != ami_id for build in all_of(line.recipe.name)):
        smoke_test(target, ami_id)
    return publish_row(line, target, ami_id=ami_id, why="nightly", say=say, bucket=bucket)


def newest_builds(
    recipes: Sequence[Recipe], bucket_for: Callable[[Recipe], RecordsBucket | None], say: Say
) -> dict[str, Record]:
    """Return the newest build of each row, on whichever machine, that began in a night's time;
    `bucket_for` is a row's bucket of records."""
    earliest = as_stamp(utc_now() - _LONGEST)
    builds = {}
    for recipe in recipes:
        if bucket := bucket_for(recipe):
            bucket.fetch_row(recipe.name, say, newest=3)
        newest = next((each for each in all_of(recipe.name) if each.kind == "build"), None)
        if newest and newest.run_id >= earliest:
            builds[recipe.name] = newest
    return builds


def read_plan(path: Path) -> dict[str, str]:
    """Return row → why it was due, of what `nightly.plan --json` printed."""
    try:
        return {str(item["row"]): str(item["why"]) for item in document(path)["items"]}
    except (KeyError, TypeError):
        raise KilnError(f"{path}: not what ./invoke nightly.plan --json prints") from None


# The report: for a terminal, as JSON, as Markdown for a job summary, as HTML


def write_report(results: Sequence[RowResult], out: str | None) -> None:
    """Write report.json, report.md and report.html to a folder."""
    when = utc_now()
    folder = Path(out) if out else build_dir() / "nightly" / as_stamp(when)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps([asdict(row) for row in results], indent=2))
    at = when.strftime("%Y-%m-%d %H:%M UTC")
    for name in ("md", "html"):
        text = render(f"nightly.{name}.j2", rows=results, counts=night_counts(results), when=at)
        path = folder / f"report.{name}"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def night_counts(results: Sequence[RowResult]) -> str:
    """Return the sum in words: 2 built, 19 skipped, 0 failed, instances $1.20."""
    number = Counter(row.action for row in results)
    words = [f"{number[action]} {action}" for action in ("built", "skipped", "failed")]
    spent = [row.usd for row in results if row.usd is not None]
    return ", ".join([*words, f"instances ${sum(spent):,.2f}"] if spent else words)


def report_text(results: Sequence[RowResult]) -> str:
    """Return the report for a terminal: the failed rows last, then the sum."""
    order = {"skipped": 0, "built": 1, "failed": 2}
    lines = [
        f"{row.action:8}{row.row}  {row.ami_id or ''}  {'; '.join([row.why, *row.changed])}"
        for row in sorted(results, key=lambda row: order[row.action])
    ]
    return "\n".join([*lines, night_counts(results)])


def send_report(target: Target, topic: str, results: Sequence[RowResult]) -> None:
    """Send the report to an SNS topic."""
    # SNS takes a message for a topic in the topic's own region alone.
    there = target.in_region(topic.split(":")[3])
    with aws.explained(f"the report could not be sent to {topic}"):
        aws.client("sns", there).publish(
            TopicArn=topic,
            Subject=f"AMI Kiln, nightly: {night_counts(results)}"[:_SUBJECT],
            Message=printable(report_text(results)).encode()[:_MESSAGE].decode(errors="ignore"),
        )
