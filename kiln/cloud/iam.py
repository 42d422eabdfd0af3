"""The IAM policies: of a build from `kiln/facts/knowledge/iam.yaml`, of those who publish, promote
and retire from `kiln/facts/knowledge/iam_publish.yaml`.

`./invoke generate` writes them to docs/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kiln.base import tags
from kiln.base.paths import ROOT
from kiln.facts import table

POLICY_FILE = ROOT / "docs" / "iam-policy.json"
# What single settings of `aws` need besides.
POLICY_FILE_SETTINGS = ROOT / "docs" / "iam-policy-settings.json"
# The tasks that have a policy of their own: publish, nightly's part of it; promote and rollback;
# retire and sweep; nightly.plan and the end of its night; stack.deploy, whose calls CloudFormation
# makes; those of the fleet; catalog; acceptance, beside the others.
PUBLISHING = ("publish", "promote", "retire", "plan", "stack", "fleet", "catalog", "acceptance")
# The account of an ARN such as arn:aws:ec2:*:*:instance/*; an image's may be empty and stays.
_ANY_ACCOUNT = re.compile(r"^(arn:aws:[^:]*:[^:]*:)\*:")


def policy(
    part: str = "statements", *, regions: Sequence[str] = (), account: str = ""
) -> dict[str, Any]:
    """The policy document in IAM's format: of a build (`statements`), of what single settings need
    besides (`settings`), or of one of PUBLISHING.

    `regions` replace those of iam.yaml; with `account` the ARNs name that account.
    """
    ours = table("iam_publish")[part]["statements"] if part in PUBLISHING else table("iam")[part]
    statements = [_statement(entry) for entry in ours]
    for statement in statements:
        equal = statement.get("Condition", {}).get("StringEquals", {})
        if regions and "aws:RequestedRegion" in equal:
            equal["aws:RequestedRegion"] = list(regions)
        if account and statement["Resource"] != "*":
            arns = statement["Resource"]
            statement["Resource"] = [_ANY_ACCOUNT.sub(rf"\g<1>{account}:", arn) for arn in arns]
    return {"Version": "2012-10-17", "Statement": statements}


def policy_text(part: str = "statements") -> str:
    """The content of a policy's file."""
    return json.dumps(policy(part), indent=2) + "\n"


def publishing_file(role: str) -> Path:
    """Return the committed file of one of PUBLISHING's policies."""
    return ROOT / "docs" / f"iam-{role}.json"


def _statement(entry: dict[str, Any]) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": entry["sid"],
        "Effect": "Allow",
        "Action": sorted(entry["actions"]),
        "Resource": entry.get("resources", "*"),
    }
    only = entry.get("only", [])
    conditions = [_CONDITIONS[name](entry) for name in ([only] if isinstance(only, str) else only)]
    for condition in (*conditions, entry.get("condition", {})):
        for operator, keys in condition.items():
            statement.setdefault("Condition", {}).setdefault(operator, {}).update(keys)
    return statement


def _types(entry: dict[str, Any]) -> dict[str, Any]:
    """The families of the known GPU instance types, and what else may bake."""
    families = {f"{row['type'].split('.')[0]}.*" for row in table("instances")["types"]}
    more = table("iam")["more_instance_types"]
    return {"StringLike": {"ec2:InstanceType": sorted({*families, *more})}}


# What each word of `only` means: an entry → its condition in IAM's words.
_CONDITIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "new_of_a_run": lambda entry: {"Null": {f"aws:RequestTag/{tags.RUN_ID}": "false"}},
    "of_a_run": lambda entry: {"Null": {f"aws:ResourceTag/{tags.RUN_ID}": "false"}},
    "at_creation": lambda entry: {"StringEquals": {"ec2:CreateAction": entry["creating"]}},
    "regions": lambda entry: {"StringEquals": {"aws:RequestedRegion": table("iam")["regions"]}},
    "types": _types,
    "owners": lambda entry: {"StringEquals": {"ec2:Owner": table("iam")["owners"]}},
}
