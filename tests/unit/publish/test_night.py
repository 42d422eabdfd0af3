"""What a night has to do, decided from the tags of AMIs and from channels; and its report."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST
from kiln.cli.nightly import plan_data
from kiln.cloud import aws
from kiln.cloud.images import own_images
from kiln.matrix.model import Publish
from kiln.pipeline import plan as planning
from kiln.pipeline.build import Outcome
from kiln.publish import codebuild
from kiln.publish import night as nights
from kiln.publish.lines import Line
from kiln.publish.night import DueRow, RowResult, finish_night, plan_night, run_night
from kiln.publish.promote import Moves
from tests.unit import cfn_lint, commands
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


def test_row_with_changed_inputs_says_which(client: Client, bake: Bake) -> None:
    plan = planning.plan_build(RECIPE, AWS, planning.Options())
    same = {"kiln:recipe-digest": plan.recipe_digest, "kiln:source-ami": plan.source.ami_id}
    ami_id = bake(1)
    for change, words in (
        ({"kiln:recipe-digest": "d" * 64}, "the recipe, the lock or a script"),
        ({"kiln:source-ami": "ami-0e"}, f"the parent AMI (ami-0e → {plan.source.ami_id})"),
        ({}, "the package snapshot"),
    ):
        tags = [{"Key": key, "Value": value} for key, value in {**same, **change}.items()]
        client("ec2").create_tags(Resources=[ami_id], Tags=tags)
        due = planned()
        assert due.action == "build"
        assert due.why == f"its inputs have changed since {ami_id}: {words}"


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
    assert plan_data(night, {RECIPE.name: "x"})["impossible"][0]["row"] == "al2-gone"
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
    def publish(line: Line, ami_id: str) -> Moves:
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


def test_unusable_topic_is_refused_at_once() -> None:
    flags = ("--name", RECIPE.name, "--topic", "nights", "--target", "aws")
    done = commands.invoke("nightly", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--topic nights" in done.stderr


COMMANDS = {"row-a": "./invoke build --name row-a && ./invoke publish", "row-b": "./invoke b"}
DEPLOY = ROOT / "deploy"


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Clients that answer what a test has put into them, and check what is sent."""
    made: dict[str, Stubber] = {}

    def of(service: str) -> Stubber:
        client: Any = boto3.client(  # type: ignore[call-overload]
            service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        made[service] = Stubber(client)
        made[service].activate()
        monkeypatch.setattr(aws, "client", lambda service, *_: made[service].client)
        return made[service]

    yield of
    for stub in made.values():
        stub.assert_no_pending_responses()


def batch(status: str, number: int = 1) -> dict[str, Any]:
    return {"id": f"worker:{number}", "buildBatchStatus": status}


def test_each_row_is_its_own_build() -> None:
    spec = yaml.safe_load(codebuild.batch_buildspec(COMMANDS))
    first, second = spec["batch"]["build-list"]
    assert first["env"]["variables"]["KILN_ENGINE_ITEM"] == COMMANDS["row-a"]
    assert first["buildspec"] == second["buildspec"]
    item = yaml.safe_load((ROOT / first["buildspec"]).read_text())
    assert item["phases"]["build"]["commands"] == ['bash -c "$KILN_ENGINE_ITEM"']
    assert spec["batch"]["fast-fail"] is False


def test_failed_batch_is_retried_once(stubbed: Any) -> None:
    stub, messages = stubbed("codebuild"), []
    wanted = {"projectName": "worker", "buildspecOverride": codebuild.batch_buildspec(COMMANDS)}
    stub.add_response("start_build_batch", {"buildBatch": {"id": "worker:1"}}, wanted)
    stub.add_response("batch_get_build_batches", {"buildBatches": [batch("IN_PROGRESS")]})
    stub.add_response("batch_get_build_batches", {"buildBatches": [batch("FAILED")]})
    stub.add_response(
        "retry_build_batch",
        {"buildBatch": {"id": "worker:2"}},
        {"id": "worker:1", "retryType": "RETRY_FAILED_BUILDS"},
    )
    stub.add_response(
        "batch_get_build_batches",
        {"buildBatches": [batch("TIMED_OUT", number=2)]},
        {"ids": ["worker:2"]},
    )
    codebuild.run_batch(AWS, "worker", COMMANDS, messages.append, pause=0)
    assert messages[-1] == "CodeBuild ended the batch as timed out"


def test_cfn_lint_takes_the_template() -> None:
    text = codebuild.CODEBUILD_TEMPLATE.read_text()
    assert cfn_lint.mistakes(text, "us-east-1") == []
    assert "arn:aws:" not in text, "GovCloud and China have other partitions"
    # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
    assert len(text.encode()) < 51_200


def test_roles_take_the_permissions_boundary() -> None:
    roles = codebuild.codebuild_text().split("Type: AWS::IAM::Role")[1:]
    assert len(roles) == 4
    for role in roles:
        properties = role.partition("\n    Type: ")[0]
        assert "PermissionsBoundary: !If [HasBoundary, !Ref PermissionsBoundary" in properties


def test_workflow_runs_the_plans_items() -> None:
    workflow = yaml.safe_load((DEPLOY / "github-nightly.yml").read_text())
    jobs = workflow["jobs"]
    assert jobs["item"]["strategy"]["matrix"]["item"] == (
        "${{ fromJSON(needs.plan.outputs.items) }}"
    )
    (build,) = (step for step in jobs["item"]["steps"] if "run" in step)
    assert (build["env"]["ITEM"], build["run"]) == ("${{ matrix.item.command }}", 'bash -c "$ITEM"')
    assert workflow["permissions"] == {"contents": "read", "id-token": "write"}
    trust = json.loads((DEPLOY / "github-oidc-trust.json").read_text())
    (statement,) = trust["Statement"]
    assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
    assert "StringEquals" in statement["Condition"]
