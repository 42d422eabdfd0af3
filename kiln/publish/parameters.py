"""Writes parameters; a new one gets the tags that the `aws` settings demand of its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.base.errors import KilnError
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix import load
from kiln.matrix.flags import NOTHING, overridden


def tags_of_line(line: str) -> dict[str, str]:
    """The tags in the `aws` settings of the row that has the line; none if no row has it."""
    try:
        rows = load.load_recipes()
    except KilnError:
        return {}
    recipe = next((recipe for recipe in rows if recipe.channel_line == line), None)
    return dict(overridden(recipe.row.account, NOTHING, recipe.arch).tags) if recipe else {}


def tags_of_row(name: str) -> dict[str, str]:
    """The tags in the `aws` settings of the row of that name."""
    try:
        return dict(overridden(load.load_account(name), NOTHING, "x86_64").tags)
    except KilnError:
        return {}


def put(target: Target, tags: Mapping[str, str], **request: Any) -> int:
    """Write a parameter as PutParameter takes it; its version.

    SSM takes tags for a new parameter alone. Its errors are raised as they are.
    https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html
    """
    from botocore.exceptions import ClientError

    ssm = aws.ssm(target)
    if tags:
        wanted = [{"Key": key, "Value": value} for key, value in tags.items()]
        try:
            new = ssm.put_parameter(**{**request, "Overwrite": False, "Tags": wanted})
            return int(new["Version"])
        except ClientError as error:
            exists = error.response["Error"].get("Code") == "ParameterAlreadyExists"
            if not exists or not request.get("Overwrite"):
                raise
    return int(ssm.put_parameter(**request)["Version"])
