"""The IAM policies: of a build from `knowledge/iam.yaml`, of those who publish, promote and retire
from `knowledge/iam_publish.yaml`; `./invoke generate` writes them to docs/."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import plain_yaml, tags
from kiln.base.paths import KNOWLEDGE, ROOT
from kiln.facts import table

POLICY_FILE = ROOT / "docs" / "iam-policy.json"
# What Packer 1.6.6 needs besides.
POLICY_FILE_1_6 = ROOT / "docs" / "iam-policy-packer-1.6.json"
# What single settings of `aws` need besides.
POLICY_FILE_SETTINGS = ROOT / "docs" / "iam-policy-settings.json"
SERVICES = (
    *("autoscaling", "cloudformation", "cloudwatch", "codebuild", "ec2", "kms", "logs", "s3"),
    *("sns", "ssm", "sts"),
)
# The tasks that have a policy of their own: publish, nightly's part of it; promote and rollback;
# retire and sweep; nightly.plan and the end of its night; stack.deploy, whose calls CloudFormation
# makes; those of the fleet; catalogue.
PUBLISHING = ("publish", "promote", "retire", "plan", "stack", "fleet", "catalogue")


@cache
def iam_facts() -> dict[str, Any]:
    """`knowledge/iam.yaml`."""
    data: dict[str, Any] = plain_yaml.read_plain(KNOWLEDGE / "iam.yaml")
    return data


def policy(part: str = "statements") -> dict[str, Any]:
    """The policy document in IAM's format; `part` is `statements`, `packer_1_6` or
    `settings`."""
    statements = [_statement(entry) for entry in iam_facts()[part]]
    return {"Version": "2012-10-17", "Statement": statements}


def policy_text(part: str = "statements") -> str:
    """The content of docs/iam-policy.json, or of the part's own file."""
    return json.dumps(policy(part), indent=2) + "\n"


@cache
def publishing_facts() -> dict[str, Any]:
    """`knowledge/iam_publish.yaml`."""
    data: dict[str, Any] = plain_yaml.read_plain(KNOWLEDGE / "iam_publish.yaml")
    return data


def publishing_policy(role: str) -> dict[str, Any]:
    """The policy document of one of PUBLISHING, in IAM's format."""
    statements = [_statement(entry) for entry in publishing_facts()[role]["statements"]]
    return {"Version": "2012-10-17", "Statement": statements}


def publishing_file(role: str) -> Path:
    """Where the policy of one of PUBLISHING is committed."""
    return ROOT / "docs" / f"iam-{role}.json"


def publishing_text(role: str) -> str:
    """The content of `publishing_file`."""
    return json.dumps(publishing_policy(role), indent=2) + "\n"


def allowed(by: str) -> set[str]:
    """The calls listed for `kiln` or for `packer`, such as ec2:RunInstances."""
    return {
        action
        for part in ("statements", "packer_1_6", "settings")
        for entry in iam_facts()[part]
        for action, callers in entry["actions"].items()
        if by in callers
    }


def called_in_builds() -> dict[str, str]:
    """The AWS calls of all tasks but those of kiln/publish, fleet and catalogue, and of stacks →
    file:line of their first use."""
    others = {ROOT / "kiln" / name for name in ("publish", "fleet", "catalogue")}
    of_stacks = {_module(name) for name in publishing_facts()["stack"]["modules"]}
    every = (ROOT / "kiln").rglob("*.py")
    return called(
        path for path in every if others.isdisjoint(path.parents) and path not in of_stacks
    )


def called_in(role: str) -> dict[str, str]:
    """The AWS calls of the modules of one of PUBLISHING → file:line of their first use."""
    names = publishing_facts()[role]["modules"]
    return called(map(_module, names))


def _module(name: str) -> Path:
    return ROOT / "kiln" / f"{name}.py"


def called(files: Iterable[Path]) -> dict[str, str]:
    """Each AWS call in Python files → file:line of its first use.

    A call is `anything.run_instances(...)`, `get_paginator("describe_images")` or
    `get_waiter("instance_terminated")`, for every operation that botocore knows of SERVICES.
    """
    places: dict[str, str] = {}
    for path in sorted(files):
        for name, line in _calls(ast.parse(path.read_text(), str(path))):
            action = _operations().get(name)
            if action:
                shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                places.setdefault(action, f"{shown}:{line}")
    return places


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


def _owners(entry: dict[str, Any]) -> dict[str, Any]:
    return {"StringEquals": {"ec2:Owner": iam_facts()["owners"]}}


def _types(entry: dict[str, Any]) -> dict[str, Any]:
    """The families of the known GPU instance types, and what else may bake."""
    families = {f"{row['type'].split('.')[0]}.*" for row in table("instances")["types"]}
    return {
        "StringLike": {"ec2:InstanceType": sorted({*families, *iam_facts()["more_instance_types"]})}
    }


# What each word of `only` means: an entry → its condition in IAM's words.
_CONDITIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "new_of_a_run": lambda entry: {"Null": {f"aws:RequestTag/{tags.RUN_ID}": "false"}},
    "of_a_run": lambda entry: {"Null": {f"aws:ResourceTag/{tags.RUN_ID}": "false"}},
    "at_creation": lambda entry: {"StringEquals": {"ec2:CreateAction": entry["creating"]}},
    "regions": lambda entry: {"StringEquals": {"aws:RequestedRegion": iam_facts()["regions"]}},
    "types": _types,
    "owners": _owners,
}


def _calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of called methods, and of requested paginators and waiters, with their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        yield node.func.attr, node.lineno
        if node.func.attr in {"get_paginator", "get_waiter"} and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                yield str(argument.value), node.lineno


# Calls whose permission has another name:
# https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html
_PERMISSIONS = {
    "list_objects_v2": "s3:ListBucket",
    "head_bucket": "s3:ListBucket",
    "put_public_access_block": "s3:PutBucketPublicAccessBlock",
}


@cache
def _operations() -> dict[str, str]:
    """boto3's method or waiter name → the IAM action, for all SERVICES."""
    import botocore.session
    from botocore import xform_name

    session = botocore.session.get_session()
    actions: dict[str, str] = {}
    for service in SERVICES:
        model = session.get_service_model(service)
        actions |= {xform_name(name): f"{service}:{name}" for name in model.operation_names}
        # A waiter polls one operation.
        waiters = _waiters(session, service)
        actions |= {xform_name(n): f"{service}:{w['operation']}" for n, w in waiters.items()}
    actions |= _PERMISSIONS
    del actions["get_template"]  # Jinja's: nothing here asks CloudFormation for a template
    return actions


def _waiters(session: Any, service: str) -> dict[str, Any]:
    from botocore.exceptions import UnknownServiceError

    try:
        loaded: dict[str, Any] = session.get_component("data_loader").load_service_model(
            service, "waiters-2"
        )
    except UnknownServiceError:
        return {}
    return dict(loaded["waiters"])
