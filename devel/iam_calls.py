"""Which AWS calls the modules of kiln/ make: kiln/cloud/iam.py allows these and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base.paths import ROOT
from kiln.cloud.iam import iam_facts, publishing_facts

SERVICES = (
    *("autoscaling", "cloudformation", "cloudwatch", "codebuild", "ec2", "kms", "logs", "s3"),
    *("sns", "ssm", "sts"),
)


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
    `aws.wait(client, "instance_terminated")`, for every operation that botocore knows of SERVICES.
    """
    places: dict[str, str] = {}
    for path in sorted(files):
        for name, line in _calls(ast.parse(path.read_text(), str(path))):
            action = _operations().get(name)
            if action:
                shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                places.setdefault(action, f"{shown}:{line}")
    return places


def _calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of called methods, and of requested paginators and waiters, with their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        yield node.func.attr, node.lineno
        if node.func.attr in {"get_paginator", "get_waiter", "wait"}:
            for argument in node.args:
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
