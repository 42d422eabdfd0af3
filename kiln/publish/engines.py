"""The templates of engines that run the nights, made from the IAM policies in docs/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kiln.base.paths import ROOT
from kiln.base.templates import render
from kiln.cloud import iam

CODEBUILD_TEMPLATE = ROOT / "deploy" / "nightly-codebuild.yaml"


def codebuild_text() -> str:
    """The content of deploy/nightly-codebuild.yaml: `./invoke generate` writes it."""
    return render(
        f"deploy/{CODEBUILD_TEMPLATE.name}.j2",
        build_policy=_in_any_partition(iam.policy()),
        plan_policy=_without("plan", "RunBatches", "SendReports"),
        catalogue_policy=_without("catalogue", "WriteTheSite"),
        publish_policy=_in_any_partition(iam.publishing_policy("publish")),
    )


def _without(role: str, *sids: str) -> str:
    """The policy of a role without what the template narrows to its own resources."""
    document = iam.publishing_policy(role)
    kept = [statement for statement in document["Statement"] if statement["Sid"] not in sids]
    return _in_any_partition({**document, "Statement": kept})


def _in_any_partition(policy: dict[str, Any]) -> str:
    """A policy for the template, its ARNs with the partition of the account: in GovCloud and China
    IAM refuses those of `aws`, https://github.com/aws/copilot-cli/issues/2563."""

    def substituted(arn: re.Match[str]) -> str:
        rest = arn[1].replace("${", "${!")  # IAM's own variables
        return f'!Sub "arn:${{AWS::Partition}}:{rest}"'

    return re.sub(r'"arn:aws:([^"]*)"', substituted, json.dumps(policy, indent=2))


def codebuild_template(path: Path = CODEBUILD_TEMPLATE) -> str:
    """The template as it is committed."""
    return path.read_text(encoding="utf-8")
