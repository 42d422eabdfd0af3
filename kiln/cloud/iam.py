"""The IAM policy that a build needs: `knowledge/iam.yaml` → docs/iam-policy.json."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kiln.base import tags
from kiln.base.paths import KNOWLEDGE, ROOT

POLICY_FILE = ROOT / "docs" / "iam-policy.json"
SERVICES = ("ec2", "ssm", "sts")


@cache
def iam_facts() -> dict[str, Any]:
    """`knowledge/iam.yaml`."""
    data: dict[str, Any] = yaml.safe_load((KNOWLEDGE / "iam.yaml").read_text())
    return data


def policy() -> dict[str, Any]:
    """The policy document in IAM's format."""
    return {
        "Version": "2012-10-17",
        "Statement": [_statement(entry) for entry in iam_facts()["statements"]],
    }


def policy_text() -> str:
    """The content of docs/iam-policy.json."""
    return json.dumps(policy(), indent=2) + "\n"


def allowed(by: str) -> set[str]:
    """The calls listed for `kiln` or for `packer`, such as ec2:RunInstances."""
    return {
        action
        for entry in iam_facts()["statements"]
        for action, callers in entry["actions"].items()
        if by in callers
    }


def called(folder: Path = ROOT / "kiln") -> dict[str, str]:
    """Each AWS call in the Python files of a folder → file:line of its first use.

    A call is `anything.run_instances(...)`, `get_paginator("describe_images")` or
    `get_waiter("instance_terminated")`, for every operation that botocore knows of SERVICES.
    """
    places: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for name, line in _calls(ast.parse(path.read_text(), str(path))):
            action = _operations().get(name)
            if action:
                places.setdefault(action, f"{path.relative_to(folder.parent)}:{line}")
    return places


def _statement(entry: dict[str, Any]) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": entry["sid"],
        "Effect": "Allow",
        "Action": sorted(entry["actions"]),
        "Resource": entry.get("resources", "*"),
    }
    only = entry.get("only")
    if only == "new_of_a_run":
        statement["Condition"] = {"Null": {f"aws:RequestTag/{tags.RUN_ID}": "false"}}
    elif only == "of_a_run":
        statement["Condition"] = {"Null": {f"aws:ResourceTag/{tags.RUN_ID}": "false"}}
    elif only == "at_creation":
        statement["Condition"] = {"StringEquals": {"ec2:CreateAction": entry["creating"]}}
    return statement


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
