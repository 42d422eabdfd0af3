"""A night on CodeBuild: a batch with one build for each row that is due, each on its own machine;
and the template of the stack that runs it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from kiln.base.errors import operation_failed
from kiln.base.paths import ROOT
from kiln.base.templates import render
from kiln.cloud import aws, iam
from kiln.cloud.target import Target
from kiln.publish.regions import Say

CODEBUILD_TEMPLATE = ROOT / "deploy" / "nightly-codebuild.yaml"
_ITEM_BUILDSPEC = "deploy/nightly-item.buildspec.yaml"


def run_batch(
    target: Target, project: str, commands: Mapping[str, str], say: Say, pause: float = 30.0
) -> None:
    """Run each row's command in a batch of a CodeBuild project, and once more those that failed."""
    client = aws.client("codebuild", target)
    request = {"projectName": project, "buildspecOverride": batch_buildspec(commands)}
    with aws.explained(f"the batch of {project} could not be run"):
        batch = str(client.start_build_batch(**request)["buildBatch"]["id"])
        say(f"CodeBuild batch {batch}: {len(commands)} rows")
        status = _status_at_end(client, batch, pause)
        # "Only batch builds that have failed can be retried", not one that was stopped:
        # https://docs.aws.amazon.com/codebuild/latest/APIReference/API_RetryBuildBatch.html
        if status == "FAILED":
            say("retries what failed: each item continues where it ended")
            again = client.retry_build_batch(id=batch, retryType="RETRY_FAILED_BUILDS")
            status = _status_at_end(client, str(again["buildBatch"]["id"]), pause)
    say(f"CodeBuild ended the batch as {status.lower().replace('_', ' ')}")


def batch_buildspec(commands: Mapping[str, str]) -> str:
    """Return the buildspec of a batch: a build per row, with the row's command in its environment.

    JSON is YAML: https://docs.aws.amazon.com/codebuild/latest/userguide/batch-build-buildspec.html
    """
    items = [
        {
            "identifier": f"row_{number}",
            "buildspec": _ITEM_BUILDSPEC,
            "env": {"variables": {"KILN_ENGINE_ROW": row, "KILN_ENGINE_ITEM": command}},
        }
        for number, (row, command) in enumerate(commands.items())
    ]
    return json.dumps({"version": 0.2, "batch": {"fast-fail": False, "build-list": items}})


def _status_at_end(client: Any, batch: str, pause: float) -> str:
    """Return the status of a batch when it has ended.

    https://docs.aws.amazon.com/codebuild/latest/APIReference/API_BuildBatch.html
    """
    while True:
        found = client.batch_get_build_batches(ids=[batch])["buildBatches"]
        if not found:
            raise operation_failed(f"CodeBuild has no batch {batch} any more")
        status = str(found[0]["buildBatchStatus"])
        if status != "IN_PROGRESS":
            return status
        time.sleep(pause)


def codebuild_text() -> str:
    """Return the content of deploy/nightly-codebuild.yaml: `./invoke generate` writes it."""
    return render(
        "deploy/nightly-codebuild.yaml.j2",
        build_policy=_in_any_partition(iam.policy()),
        plan_policy=_without("plan", "RunBatches", "SendReports"),
        catalog_policy=_without("catalog", "WriteTheSite"),
        publish_policy=_in_any_partition(iam.policy("publish")),
    )


def _without(role: str, *sids: str) -> str:
    """Return the policy of a role without what the template narrows to its own resources."""
    document = iam.policy(role)
    kept = [statement for statement in document["Statement"] if statement["Sid"] not in sids]
    return _in_any_partition({**document, "Statement": kept})


def _in_any_partition(policy: dict[str, Any]) -> str:
    """Return a policy for the template, its ARNs with the partition of the account: in GovCloud and
    China IAM refuses those of `aws`, https://github.com/aws/copilot-cli/issues/2563."""

    def substituted(arn: re.Match[str]) -> str:
        rest = arn[1].replace("${", "${!")  # IAM's own variables
        return f'!Sub "arn:${{AWS::Partition}}:{rest}"'

    return re.sub(r'"arn:aws:([^"]*)"', substituted, json.dumps(policy, indent=2))
