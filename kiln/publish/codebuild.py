"""A night on CodeBuild: one build of a batch for each row that is due, each on its own machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from kiln.base.errors import operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target

ITEM_BUILDSPEC = "deploy/nightly-item.buildspec.yaml"
# https://docs.aws.amazon.com/codebuild/latest/APIReference/API_BuildBatch.html (buildBatchStatus)
_RUNNING = "IN_PROGRESS"
_SUCCEEDED = "SUCCEEDED"
# "Only batch builds that have failed can be retried": not one that was stopped or took too long.
# https://docs.aws.amazon.com/codebuild/latest/APIReference/API_RetryBuildBatch.html
_FAILED = "FAILED"


def batch_buildspec(commands: Mapping[str, str]) -> str:
    """The buildspec of a batch: a build per row, with the row's command in its environment.

    JSON is YAML. Format: https://docs.aws.amazon.com/codebuild/latest/userguide/batch-build-buildspec.html
    """
    items = [
        {
            "identifier": _identifier(number),
            "buildspec": ITEM_BUILDSPEC,
            "env": {"variables": {"KILN_ENGINE_ROW": row, "KILN_ENGINE_ITEM": command}},
        }
        for number, (row, command) in enumerate(commands.items())
    ]
    return json.dumps({"version": 0.2, "batch": {"fast-fail": False, "build-list": items}})


def run_batch(
    target: Target,
    project: str,
    commands: Mapping[str, str],
    say: Callable[[str], None],
    pause: float = 30.0,
) -> dict[str, str]:
    """Run each row's command in a batch of a CodeBuild project, and once more those that failed.

    Returns CodeBuild's status of each row; `pause` is in seconds. Raises KilnError (exit status 1)
    if CodeBuild refuses.
    """
    client = aws.codebuild(target)
    with aws.explained(f"the batch of {project} could not be started"):
        started = client.start_build_batch(
            projectName=project, buildspecOverride=batch_buildspec(commands)
        )
    batch = str(started["buildBatch"]["id"])
    say(f"CodeBuild batch {batch}: {len(commands)} rows")
    ended, whole = _wait(client, batch, commands, say, pause)
    if whole not in (_SUCCEEDED, _FAILED):
        say(f"CodeBuild ended the batch as {_words(whole)}: nothing is run once more")
    elif any(status != _SUCCEEDED for status in ended.values()):
        say("retries what failed: each item continues where it ended")
        with aws.explained(f"the batch {batch} could not be tried again"):
            again = client.retry_build_batch(id=batch, retryType="RETRY_FAILED_BUILDS")
        batch = str(again["buildBatch"]["id"])
        ended, _ = _wait(client, batch, commands, say, pause)
    return ended


def _words(status: str) -> str:
    return status.lower().replace("_", " ")


def _wait(
    client: Any,
    batch: str,
    commands: Mapping[str, str],
    say: Callable[[str], None],
    pause: float,
) -> tuple[dict[str, str], str]:
    """The status of each row when the batch has ended, and the batch's; tells each change on the
    way."""
    reported: dict[str, str] = {}
    while True:
        with aws.explained(f"the batch {batch} could not be looked up"):
            batches = client.batch_get_build_batches(ids=[batch])["buildBatches"]
        if not batches:
            raise operation_failed(f"CodeBuild has no batch {batch} any more")
        statuses = _statuses(batches[0], commands)
        for row, status in statuses.items():
            if reported.get(row) != status:
                say(f"{row}: {_words(status)}")
        reported = statuses
        whole = str(batches[0]["buildBatchStatus"])
        if whole != _RUNNING:
            return {row: statuses.get(row, "NOT_STARTED") for row in commands}, whole
        time.sleep(pause)


def _statuses(batch: Any, commands: Mapping[str, str]) -> dict[str, str]:
    rows = {_identifier(number): row for number, row in enumerate(commands)}
    return {
        rows[group["identifier"]]: str(group["currentBuildSummary"]["buildStatus"])
        for group in batch.get("buildGroups", [])
        if group.get("identifier") in rows and "currentBuildSummary" in group
    }


def _identifier(number: int) -> str:
    return f"row_{number}"
