"""Nights on engines that users run already: the stack, the batch of builds, the workflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber

from kiln.base.paths import ROOT
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish import codebuild
from tests.unit import cfn_lint

AWS = Target("a test", "us-east-1", account="123456789012")
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


@pytest.mark.parametrize("status", ["SUCCEEDED", "TIMED_OUT"])
def test_unfailed_batch_runs_once(stubbed: Any, status: str) -> None:
    stub, messages = stubbed("codebuild"), []
    wanted = {"projectName": "worker", "buildspecOverride": codebuild.batch_buildspec(COMMANDS)}
    stub.add_response("start_build_batch", {"buildBatch": {"id": "worker:1"}}, wanted)
    for look in (batch("IN_PROGRESS"), batch(status)):
        stub.add_response("batch_get_build_batches", {"buildBatches": [look]})
    codebuild.run_batch(AWS, "worker", COMMANDS, messages.append, pause=0)
    assert messages[-1] == f"CodeBuild ended the batch as {status.lower().replace('_', ' ')}"


def test_failed_batch_is_retried_once(stubbed: Any) -> None:
    stub, messages = stubbed("codebuild"), []
    stub.add_response("start_build_batch", {"buildBatch": {"id": "worker:1"}})
    stub.add_response("batch_get_build_batches", {"buildBatches": [batch("FAILED")]})
    stub.add_response(
        "retry_build_batch",
        {"buildBatch": {"id": "worker:2"}},
        {"id": "worker:1", "retryType": "RETRY_FAILED_BUILDS"},
    )
    stub.add_response(
        "batch_get_build_batches",
        {"buildBatches": [batch("SUCCEEDED", number=2)]},
        {"ids": ["worker:2"]},
    )
    codebuild.run_batch(AWS, "worker", COMMANDS, messages.append, pause=0)
    assert messages[-1] == "CodeBuild ended the batch as succeeded"


@cfn_lint.together
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
