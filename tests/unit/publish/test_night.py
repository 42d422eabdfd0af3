"""What a night has to do, decided from the tags of AMIs and from channels; and its report."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST
from kiln.cli.nightly import plan_data, plan_text
from kiln.cloud.images import own_images
from kiln.matrix.model import Publish
from kiln.pipeline import plan as planning
from kiln.pipeline.build import Outcome
from kiln.publish import night as nights
from kiln.publish.lines import Line
from kiln.publish.night import DueRow, RowResult, finish_night, plan_night, run_night
from kiln.publish.publish import Publication
from tests.unit import commands
from tests.unit.publish.channel import (
    AWS,
    LINE,
    OTHER,
    RECIPE,
    Bake,
    Client,
    back,
    published,
    versions_of,
)
from tests.unit.publish.faults import at_each_call


def planned(recipe: Recipe = RECIPE, **settings: int) -> DueRow:
    """What a night does with the row."""
    (row,) = plan_night([Line(recipe, Publish.model_validate(settings))], AWS)
    return row


pytestmark = pytest.mark.slow


def to_publish(ami_id: str) -> list[DueRow]:
    return [DueRow(Line(RECIPE, Publish()), "publish", "its inputs have changed", ami_id)]


@pytest.fixture
def baked(client: Client, bake: Bake) -> Callable[[], str]:
    """Makes a verified AMI of the row that was built from today's inputs."""
    digest = planning.plan_build(RECIPE, AWS, planning.Options()).input_digest

    def made() -> str:
        ami_id = bake(1)
        tags = [{"Key": INPUT_DIGEST, "Value": digest}]
        client("ec2").create_tags(Resources=[ami_id], Tags=tags)
        return ami_id

    return made


def test_row_is_built_then_published_then_skipped(baked: Callable[[], str]) -> None:
    assert (planned().action, planned().why) == ("build", "it has no verified AMI")
    ami_id = baked()
    due = planned()
    assert (due.action, due.ami_id) == ("publish", ami_id)
    assert due.why == f"{ami_id}, built before, was not in nightly yet"
    published()
    skipped = planned()
    assert (skipped.action, skipped.ami_id, skipped.channel) == ("skip", ami_id, "nightly")
    assert "has the same inputs" in skipped.why


def test_night_does_not_undo_a_rollback(
    baked: Callable[[], str], bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(ami_id=bake(0))
    ami_id = baked()
    published(ami_id=ami_id)
    before = back("nightly")
    # EC2 dates images to the second.
    hour = timedelta(hours=1)
    monkeypatch.setattr(
        "kiln.publish.night.own_images",
        lambda target: [
            replace(
                image, created=datetime.now(timezone.utc) - hour * (2 - (image.ami_id == ami_id))
            )
            for image in own_images(target)
        ],
    )
    skipped = planned()
    assert skipped.action == "skip"
    assert skipped.why.startswith(f"nightly was rolled back to {before} at ")
    assert f"{ami_id} was built, which is not published again" in skipped.why
    assert (skipped.ami_id, (skipped.verdict or "")[:4]) == (before, "pass")


@pytest.mark.parametrize(
    ("recipe", "parent", "words"),
    [
        ("d" * 64, "", "the recipe, the lock or a script"),
        ("", "ami-0e0e0e0e", "the parent AMI (ami-0e0e0e0e → {parent})"),
        ("", "", "the package snapshot"),
    ],
)
def test_row_with_changed_inputs_says_which(
    bake: Bake, recipe: str, parent: str, words: str
) -> None:
    plan = planning.plan_build(RECIPE, AWS, planning.Options())
    tags = {
        "kiln:recipe-digest": recipe or plan.recipe_digest,
        "kiln:source-ami": parent or plan.source.ami_id,
    }
    ami_id = bake(1, tags=tags)
    due = planned()
    assert due.action == "build"
    message = words.format(parent=plan.source.ami_id)
    assert due.why == f"its inputs have changed since {ami_id}: {message}"


def test_night_names_grave_differences(bake: Bake) -> None:
    published(ami_id=bake(1))
    second = bake(2, versions=versions_of("580.178.04"))
    (row,) = run_night(
        to_publish(second), pytest.fail, lambda line, ami_id: published(ami_id=ami_id)
    )
    assert (row.action, row.channel, row.changed) == (
        *("built", "nightly"),
        ("driver 510.47.03 → 580.178.04",),
    )
    assert (row.verdict or "").startswith("pass 2026-11-02")


def test_each_failed_row_has_its_reason() -> None:
    rows = [RECIPE.changed(name=name) for name in ("al2-460", "al2-460-ecs", "al2-510")]
    night = [DueRow(Line(row, Publish()), "build", "its inputs have changed") for row in rows]
    reasons = {
        "al2-460-ecs": KilnError("al2-460-ecs: no capacity"),
        "al2-460": KilnError("it has no network"),
    }
    results = run_night(night, lambda rows: Outcome(3, (), reasons), pytest.fail)
    assert [(row.row, row.action, row.why) for row in results] == [
        ("al2-460", "failed", "it has no network"),
        ("al2-460-ecs", "failed", "al2-460-ecs: no capacity"),
        ("al2-510", "failed", "it was stopped"),
    ]


def test_row_without_parent_ami_fails_alone(bake: Bake) -> None:
    gone = RECIPE.changed(
        name="al2-gone", source_ami=RECIPE.source_ami.changed(ssm_parameter="/aws/service/gone")
    )
    night = plan_night([Line(gone, Publish()), Line(RECIPE, Publish())], AWS)
    assert [row.action for row in night] == ["fail", "build"]
    commands_by_row = {RECIPE.name: "./invoke build"}
    assert plan_data(night, commands_by_row)["impossible"][0]["row"] == "al2-gone"
    assert "fail   al2-gone: source AMI not found" in plan_text(night, commands_by_row)
    (failed,) = finish_night(night[:1], {}, {})
    assert (failed.row, failed.action, failed.line) == ("al2-gone", "failed", LINE)
    assert "SSM has no such parameter" in failed.why
    reason = {RECIPE.name: KilnError("no capacity")}
    results = run_night(night, lambda rows: Outcome(1, (), reason), pytest.fail)
    assert [(row.row, row.action) for row in results] == [
        ("al2-gone", "failed"),
        (RECIPE.name, "failed"),
    ]


def test_unpublished_row_keeps_its_build(bake: Bake) -> None:
    def publish(line: Line, ami_id: str) -> Publication:
        raise KilnError("no such region")

    ami_id = bake(1)
    (row,) = run_night(to_publish(ami_id), pytest.fail, publish)
    assert (row.action, row.why) == ("failed", "not published: no such region")
    assert (row.line, row.ami_id) == (LINE, ami_id)


RESULTS = [
    RowResult(
        *("row-a", "built", "its inputs <have> changed"),
        ami_id="ami-0a",
        line="al2/classic/base/x86_64",
        channel="nightly",
        seconds=12.5,
        checks="97 passed",
        usd=0.25,
        verdict="pass 2026-11-02 c0ffee0",
        changed=("kernel 1 → 2",),
    ),
    RowResult("row-b", "failed", "no capacity | anywhere", line="al2/x/base/x86_64"),
    RowResult(
        *("row-c", "skipped", "same inputs"),
        ami_id="ami-0c",
        line="al2/y/base/x86_64",
        channel="nightly",
        verdict="pass 2026-11-01 c0ffee0",
    ),
]
COUNTS = "1 built, 1 skipped, 1 failed, instances $0.25"


@pytest.mark.parametrize("name", ["report.json", "report.md", "report.html"])
def test_each_report_has_every_column(tmp_path: Path, name: str) -> None:
    nights.write_report(RESULTS, str(tmp_path))
    text = (tmp_path / name).read_text()
    assert ("<have>" in text) == (name != "report.html")
    text = html.unescape(text)
    built = ("row-a", "built", "its inputs <have> changed", "ami-0a", "12.5", "0.25", "97 passed")
    words = (*built, "kernel 1 → 2", "al2/classic/base/x86_64", "pass 2026-11-02 c0ffee0")
    skipped = ("row-c", "same inputs", "al2/y/base/x86_64", "nightly", "pass 2026-11-01 c0ffee0")
    if name == "report.md":
        assert text.startswith(f"## AMI Kiln, nightly: {COUNTS}\n")
        assert "| row-b | failed | no capacity \\| anywhere |" in text
    if name == "report.json":
        text = json.dumps(json.loads(text), ensure_ascii=False)
    assert [word for word in (*words, *skipped, "al2/x/base/x86_64") if word not in text] == []


def test_topic_gets_a_report_that_fits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = client("sns", OTHER).create_topic(Name="nights")["TopicArn"]
    sent: list[tuple[str, dict[str, Any]]] = []

    def act(region: str, operation: str, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        sent.append((region, given))
        return call()

    at_each_call(monkeypatch, act)
    # A file's name may have bytes that are not UTF-8.
    nights.send_report(AWS, topic, [*RESULTS, RowResult("row-d", "failed", "\udcff→" * 100_000)])
    ((region, message),) = sent
    assert region == OTHER
    assert len(message["Message"].encode()) <= 262144
    assert "failed  row-d    \\udcff→" in message["Message"]
    assert message["Subject"] == "AMI Kiln, nightly: 1 built, 1 skipped, 2 failed, instances $0.25"


PRICE = 0.526  # of a g4dn.xlarge, an hour


@pytest.mark.parametrize(
    ("bake", "verify", "usd"),
    [
        ("g4dn.xlarge", "g4dn.xlarge", PRICE * 1.5),
        ("g4dn.xlarge", None, PRICE),
        ("p9.48xlarge", "g4dn.xlarge", None),
    ],
)
def test_run_costs_the_seconds_of_its_instances(
    bake: str, verify: str | None, usd: float | None
) -> None:
    seconds = {"packer build": 3600, "boot the AMI": 900, "checks": 900, "clean-up": 500}
    assert planning.run_usd(seconds, bake, verify) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--out", "{file}", "--out: {file}: File exists"),
        ("--topic", "nights", "--topic nights is not the ARN of an SNS topic"),
    ],
)
def test_unusable_report_place_is_refused_at_once(
    tmp_path: Path, flag: str, value: str, why: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    given = value.format(file=file)
    done = commands.invoke("nightly", "--name", RECIPE.name, flag, given, "--target", "aws")
    assert (done.returncode, done.stdout) == (2, "")
    assert why.format(file=file) in done.stderr
