"""What a night has to do, decided from the tags of AMIs and from channels; and its report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST
from kiln.cloud import parents
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.pipeline import plan as planning
from kiln.publish import night_report
from kiln.publish.nightly import Night, RowResult, plan_night
from tests.unit.publish.channel import AWS, OTHER, RECIPE, Bake, published


def planned(recipe: Recipe = RECIPE, **settings: int) -> Night:
    return plan_night([recipe], {recipe.name: Publish.model_validate(settings)}, AWS)


@pytest.fixture
def baked(client: Callable[..., Any], bake: Bake) -> Callable[[], str]:
    """Makes a verified AMI of the row that was built from today's inputs."""
    digest = planning.plan_build(RECIPE, AWS, planning.Options()).input_digest

    def made() -> str:
        ami_id = bake(1)
        tags = [{"Key": INPUT_DIGEST, "Value": digest}]
        client("ec2").create_tags(Resources=[ami_id], Tags=tags)
        return ami_id

    return made


def test_a_row_is_due_without_an_ami_then_to_be_published_then_skipped(
    baked: Callable[[], str],
) -> None:
    assert [one.why for one in planned().due] == ["it has no verified AMI"]
    ami_id = baked()
    (due,) = planned().due
    assert (due.ami_id, due.why) == (ami_id, f"{ami_id}, built before, was not in nightly yet")
    published()
    (skipped,) = planned().skipped
    assert (skipped.ami_id, skipped.channel) == (ami_id, "nightly")
    assert "has the same inputs" in skipped.why


def test_a_row_is_due_when_its_inputs_have_changed(bake: Bake) -> None:
    ami_id = bake(1)
    assert [one.why for one in planned().due] == [f"its inputs have changed since {ami_id}"]


def test_a_row_with_a_region_of_its_own_is_planned_where_the_night_looks_for_amis(
    baked: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    baked()
    published()
    asked = []
    real = parents.resolve

    def resolve(recipe: Recipe, target: Target) -> Any:
        asked.append(target.region)
        return real(recipe, target)

    monkeypatch.setattr(parents, "resolve", resolve)
    elsewhere = replace(RECIPE.row.account, region=OTHER)
    recipe = replace(RECIPE, row=replace(RECIPE.row, account=elsewhere))
    assert [one.row for one in planned(recipe).skipped] == [RECIPE.name]
    assert asked == [AWS.region]


def test_a_night_looks_up_a_parent_once_for_all_rows_that_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    ask = BaseClient._make_api_call  # type: ignore[attr-defined]

    def noted(self: Any, name: str, given: Any) -> Any:
        calls.append(name)
        return ask(self, name, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", noted)
    rows = [replace(RECIPE, name=f"{RECIPE.name}-{number}") for number in range(4)]
    assert len(plan_night(rows, {row.name: Publish() for row in rows}, AWS).due) == 4
    # The second DescribeImages lists the images of AMI Kiln.
    parent = ["GetParameter", "DescribeImages"]
    assert sorted(calls) == sorted([*parent, "DescribeImages", "GetParametersByPath"])


RESULTS = [
    RowResult("row-a", "built", "its inputs <have> changed", ami_id="ami-0a", checks="97 passed"),
    RowResult("row-b", "failed", "no capacity | anywhere"),
]


def test_the_report_of_a_night_has_a_form_for_programs_forges_and_people(tmp_path: Path) -> None:
    night_report.write(RESULTS, str(tmp_path))
    rows = json.loads((tmp_path / "report.json").read_text())
    assert [(row["row"], row["action"]) for row in rows] == [
        ("row-a", "built"),
        ("row-b", "failed"),
    ]
    summary = (tmp_path / "report.md").read_text()
    assert summary.startswith("## AMI Kiln, nightly: 1 built, 0 skipped, 1 failed\n")
    assert "| row-b | failed | no capacity \\| anywhere |" in summary
    assert "its inputs &lt;have&gt; changed" in (tmp_path / "report.html").read_text()


def test_the_report_of_a_night_reaches_its_topic(client: Callable[..., Any]) -> None:
    sqs, sns = client("sqs"), client("sns")
    queue = sqs.create_queue(QueueName="nights")["QueueUrl"]
    known = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    topic = sns.create_topic(Name="nights")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=known["QueueArn"])
    night_report.send(AWS, topic, RESULTS)
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    told = json.loads(message["Body"])
    assert told["Subject"] == "AMI Kiln, nightly: 1 built, 0 skipped, 1 failed"
    assert told["Message"].splitlines()[0] == "built   row-a  ami-0a  its inputs <have> changed"
