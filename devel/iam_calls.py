"""The AWS calls of kiln's modules: kiln/cloud/iam.py allows these and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base.paths import ROOT
from kiln.facts import table

SERVICES = (
    *("autoscaling", "cloudformation", "cloudwatch", "codebuild", "ec2", "kms", "logs", "s3"),
    *("sns", "ssm", "sts"),
)


def allowed(by: str) -> set[str]:
    """The calls listed for `kiln` or for `packer`, such as ec2:RunInstances."""
    return {
        action
        for part in ("statements", "settings")
        for entry in table("iam")[part]
        for action, callers in entry["actions"].items()
        if by in callers
    }


def called_in_builds() -> dict[str, str]:
    """The AWS calls of all tasks but those of kiln/publish, fleet and catalog, of stacks and of
    acceptance → file:line of their first use."""
    others = {ROOT / "kiln" / name for name in ("publish", "fleet", "catalog")}
    roles = [table("iam_publish")[role] for role in ("stack", "acceptance")]
    of_stacks = {_module(name) for role in roles for name in role["modules"]}
    every = (ROOT / "kiln").rglob("*.py")
    return called(
        path for path in every if others.isdisjoint(path.parents) and path not in of_stacks
    )


def called_in(role: str) -> dict[str, str]:
    """The AWS calls of the modules, or functions (`module:function`), of one of PUBLISHING →
    file:line of their first use."""
    places: dict[str, str] = {}
    for name in table("iam_publish")[role]["modules"]:
        module, _, function = name.partition(":")
        places |= called([_module(module)], function)
    return places


def _module(name: str) -> Path:
    return ROOT / "kiln" / f"{name}.py"


def called(files: Iterable[Path], function: str = "") -> dict[str, str]:
    """Each AWS call in Python files, or in one function of them → file:line of its first use.

    A call is `anything.run_instances(...)`, or has the name of an operation or waiter as an
    argument, such as `aws.wait(client, "instance_running")`, for every operation of SERVICES.
    """
    places: dict[str, str] = {}
    for path in sorted(files):
        body = ast.parse(path.read_text(), str(path)).body
        parts = [node for node in body if function in ("", getattr(node, "name", None))]
        assert parts, f"{path} has no {function}"  # noqa: S101
        for name, line in (call for part in parts for call in _calls(part)):
            action = _operations().get(name)
            if action:
                shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                places.setdefault(action, f"{shown}:{line}")
    return places


def _calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of called methods, and texts with an underscore among arguments, with their
    lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute):
            yield node.func.attr, node.lineno
        for argument in node.args:
            if isinstance(argument, ast.Constant) and "_" in str(argument.value):
                yield str(argument.value), node.lineno


# Calls whose permission has another name:
# https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html
_PERMISSIONS = {
    "list_objects_v2": "s3:ListBucket",
    "head_bucket": "s3:ListBucket",
    "list_buckets": "s3:ListAllMyBuckets",
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
    # The names of functions of Jinja and securesystemslib, which are not calls to AWS.
    del actions["get_template"], actions["verify"]
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
