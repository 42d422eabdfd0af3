"""What the commands of a query of Logs Insights may be together, in CloudWatch's words."""

from __future__ import annotations

from collections.abc import Iterable

from lab.cloudwatch.logs_insights.query import Command, Node, Query, QueryError

# statsStatements of https://docs.aws.amazon.com/cdk/api/v2/docs/aws-cdk-lib.aws_logs.QueryString.html
_MOST_STATS = 2


def check(query: Query) -> None:
    """Refuse commands that cannot stand together. Raises QueryError."""
    projected: set[str] = set()
    shadowed: set[str] = set()
    left: set[str] | None = None  # the names that a stats command leaves
    counted = 0
    for number, command in enumerate(query.commands):
        if number and query.commands[number - 1].name == "dedup" and command.name != "limit":
            # https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax-Dedup.html
            raise QueryError(f"unexpected symbol found {command.name}", command.start, command.end)
        if command.name == "stats":
            counted += 1
            if counted > _MOST_STATS:
                message = f"a query has up to {_MOST_STATS} stats commands"
                raise QueryError(message, command.start, command.end)
            left = _check_stats(command, left, shadowed)
            continue
        for node in _nodes_of(command):
            _refuse_aggregates(node)
            if left is not None:
                _refuse_unknown(node, left)
        for item in command.items:
            if item.is_alias and item.name in projected:
                shadowed.add(item.name)
            projected.add(item.name)
            if left is not None:
                left.add(item.name)
        if left is not None and command.name == "parse":
            left.update(command.names)


def _check_stats(command: Command, left: set[str] | None, shadowed: set[str]) -> set[str]:
    """The names that it leaves. A name that it cannot know is refused in CloudWatch's words, and so
    is an alias of the name that `fields` has already:
    https://github.com/trade-tariff/trade-tariff-backend/pull/3465"""
    columns = {item.name for item in command.by}
    for item in command.by:
        _refuse_aggregates(item.node)
        if left is not None:
            _refuse_unknown(item.node, left)
    for item in command.items:
        for node in _outside_aggregates(item.node):
            if node.kind == "field" and node.name not in columns:
                raise _unknown(node)
        for node in _walk(item.node):
            if node.kind == "aggregate":
                for arg in node.parts:
                    _refuse_aggregates(arg)
                    if left is not None:
                        _refuse_unknown(arg, left)
        columns.add(item.name)
    for node in [each for item in (*command.items, *command.by) for each in _walk(item.node)]:
        if node.kind == "field" and node.name in shadowed:
            raise _unknown(node)
    return columns


def _nodes_of(command: Command) -> list[Node]:
    fields = [Node("field", name, (), command.start, command.end) for name in command.names]
    return [
        command.node,
        *(item.node for item in command.items),
        *(node for node, _ in command.keys),
        *(fields if command.name == "dedup" else []),
    ]


def _walk(node: Node) -> Iterable[Node]:
    yield node
    for part in node.parts:
        yield from _walk(part)


def _outside_aggregates(node: Node) -> Iterable[Node]:
    if node.kind == "aggregate":
        return
    yield node
    for part in node.parts:
        yield from _outside_aggregates(part)


def _refuse_aggregates(node: Node) -> None:
    for part in _walk(node):
        if part.kind == "aggregate":
            raise QueryError(f"{part.name} is allowed in stats only", part.start, part.end)


def _refuse_unknown(node: Node, left: set[str]) -> None:
    for part in _walk(node):
        if part.kind == "field" and part.name not in left:
            raise _unknown(part)


def _unknown(node: Node) -> QueryError:
    message = f"Unknown symbols found in or after stats: {node.name}"
    return QueryError(message, node.start, node.end)
