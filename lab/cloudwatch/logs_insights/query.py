"""A query of Logs Insights that was read: its commands and their expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lab.cloudwatch.logs_insights import values

# https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax-Limit.html
MOST_ROWS, ROWS = 100_000, 10_000


class QueryError(ValueError):
    """A query that is refused: where what is wrong stands, and which command the lab lacks."""

    def __init__(self, message: str, start: int, end: int, lacks: str = "") -> None:
        super().__init__(message)
        self.start, self.end, self.lacks = start, end, lacks


# An expression is a tree: a field, a literal, a call, an operation on others.
@dataclass(frozen=True)
class Node:
    """An expression: its kind, its name or value, its parts, and its place in the query."""

    kind: str
    name: str
    parts: tuple[Node, ...]
    start: int
    end: int
    value: values.Value = None
    pattern: re.Pattern[str] = re.compile("")


@dataclass(frozen=True)
class Item:
    """A column: an expression and its name, the alias or the expression as it is written."""

    node: Node
    name: str
    is_alias: bool


@dataclass(frozen=True)
class Command:
    """A command; what it has depends on its name."""

    name: str
    start: int
    end: int
    items: tuple[Item, ...] = ()
    by: tuple[Item, ...] = ()
    node: Node = Node("none", "", (), 0, 0)
    keys: tuple[tuple[Node, bool], ...] = ()  # descending
    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] = re.compile("")
    number: int = 0


@dataclass(frozen=True)
class Query:
    """A query; `source` chooses log groups where the request names none."""

    text: str
    commands: tuple[Command, ...]
    source: Mapping[str, tuple[str, ...]] | None
