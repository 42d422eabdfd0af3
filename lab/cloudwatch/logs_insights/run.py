"""Takes a query over log events: each command makes rows of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lab.cloudwatch.logs_insights import values
from lab.cloudwatch.logs_insights.query import ROWS, Command, Item, Node, Query
from lab.cloudwatch.logs_insights.values import Moment, Row, Value

_MOMENT = "@timestamp"


@dataclass(frozen=True)
class Event:
    """A log event, in which group and stream it is; times in milliseconds since 1970."""

    group: str
    stream: str
    moment: int
    received: int
    message: str
    account: str
    pointer: str

    def row(self) -> Row:
        """Its fields: those of CloudWatch and those of a JSON event."""
        return {
            **values.discovered(self.message),
            "@timestamp": Moment(self.moment),
            "@ingestionTime": Moment(self.received),
            "@message": self.message,
            "@logStream": self.stream,
            "@log": f"{self.account}:{self.group}",
            "@ptr": self.pointer,
        }


@dataclass
class Results:
    """The rows of a query, each a list of columns and their texts, and how many events matched."""

    rows: list[list[tuple[str, str]]]
    scanned: int
    matched: int
    bytes_scanned: int


@dataclass
class _State:
    rows: list[Row]
    shown: list[str] = field(default_factory=list)
    counted: bool = False
    sorted: bool = False
    limit: int = ROWS
    matched: int = 0


def run(query: Query, events: Iterable[Event], limit: int | None = None) -> Results:
    """The rows of events, the newest first unless the query sorts; a `limit` in the query counts
    before the request's."""
    listed = sorted(events, key=lambda event: event.moment, reverse=True)
    state = _State([event.row() for event in listed], matched=len(listed))
    for command in query.commands:
        _COMMANDS[command.name](state, command)
    names = state.shown or [_MOMENT, "@message"]
    if "@ptr" not in names:
        names = [*names, "@ptr"]
    limited = any(command.name == "limit" for command in query.commands)
    rows = state.rows if limited else state.rows[: limit or ROWS]
    # A row omits fields that its event lacks.
    shown = [[(name, values.text(row[name])) for name in names if row.get(name) is not None]
             for row in rows]  # fmt: skip
    size = sum(len(event.message.encode()) for event in listed)
    return Results(shown, len(listed), state.matched, size)


def _show(state: _State, names: Iterable[str]) -> None:
    state.shown += [name for name in names if name not in state.shown]


def _fields(state: _State, command: Command) -> None:
    """An item sees the fields of the commands before, not those of its own command."""
    state.rows = [{**row, **_made(command.items, row)} for row in state.rows]
    _show(state, (item.name for item in command.items))


def _display(state: _State, command: Command) -> None:
    state.rows = [{**row, **_made(command.items, row)} for row in state.rows]
    state.shown = [item.name for item in command.items]


def _made(items: Sequence[Item], row: Row) -> Row:
    return {item.name: evaluated(item.node, row) for item in items}


def _filter(state: _State, command: Command) -> None:
    state.rows = [row for row in state.rows if values.is_true(evaluated(command.node, row))]
    if not state.counted:
        state.matched = len(state.rows)


def _stats(state: _State, command: Command) -> None:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in state.rows:
        keys = [evaluated(item.node, row) for item in command.by]
        # A missing value and an empty one are different groups.
        groups.setdefault(tuple(map(repr, keys)), []).append(row)
    if not command.by and not groups:
        groups[()] = []
    made = []
    for rows in groups.values():
        result = _made(command.by, rows[0]) if rows else {}
        for item in command.items:
            result[item.name] = _over(item.node, rows, result)
        made.append(result)
    state.rows, state.counted = made, True
    state.shown = [item.name for item in (*command.by, *command.items)]


def _over(node: Node, rows: Sequence[Row], result: Row) -> Value:
    """An expression of stats: statistics over rows, and names of this command's columns."""
    if node.kind == "aggregate":
        if node.name == "count" and (not node.parts or node.parts[0].kind == "star"):
            return len(rows)
        listed = [evaluated(node.parts[0], row) for row in rows]
        if node.name == "pct":
            percent = values.number(evaluated(node.parts[1], {}))
            return None if percent is None else values.percentile(listed, float(percent))
        moments = [int(values.number(row.get(_MOMENT)) or 0) for row in rows]
        return values.aggregated(node.name, listed, moments)
    if node.parts:
        return _operated(node, lambda part: _over(part, rows, result))
    return evaluated(node, result)


def _sort(state: _State, command: Command) -> None:
    for key, descending in reversed(command.keys):
        state.rows.sort(
            key=lambda row, key=key: values.order(evaluated(key, row)),  # type: ignore[misc]
            reverse=descending,
        )


def _limit(state: _State, command: Command) -> None:
    state.rows = state.rows[: command.number]


def _dedup(state: _State, command: Command) -> None:
    """The first of each; an event that lacks one of the fields stays."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for row in state.rows:
        there = [row.get(name) for name in command.names]
        key = tuple(map(values.text, there))
        if None in there or key not in seen:
            kept.append(row)
        if None not in there:
            seen.add(key)
    state.rows = kept


def _parse(state: _State, command: Command) -> None:
    """An event that does not match stays, without the fields."""
    state.rows = [{**row, **_extracted(command, row)} for row in state.rows]
    if not state.counted and not state.shown:
        state.shown = [_MOMENT, "@message"]
    _show(state, command.names)


def _extracted(command: Command, row: Row) -> Row:
    value = evaluated(command.node, row)
    match = None if value is None else command.pattern.search(values.text(value))
    return {} if match is None else dict(zip(command.names, match.groups(), strict=True))


_COMMANDS: dict[str, Callable[[_State, Command], None]] = {
    "fields": _fields,
    "display": _display,
    "filter": _filter,
    "stats": _stats,
    "sort": _sort,
    "limit": _limit,
    "dedup": _dedup,
    "parse": _parse,
}


def evaluated(node: Node, row: Row) -> Value:
    """An expression's value in a row."""
    if node.kind == "field":
        return row.get(node.name)
    if node.kind in ("literal", "period"):
        return node.value
    if node.kind == "call" and node.name == "bin":
        return values.called("bin", [row.get(_MOMENT), evaluated(node.parts[0], row)])
    return _operated(node, lambda part: evaluated(part, row))


def _operated(node: Node, value_of: Callable[[Node], Value]) -> Value:
    parts = [value_of(part) for part in node.parts]
    if node.kind in ("any", "all"):
        return _joined(node.kind, parts)
    if node.kind == "call":
        return values.called(node.name, parts)
    if node.kind == "minus":
        return values.calculated("-", 0, parts[0])
    if node.kind in ("operation", "power"):
        made = values.calculated if node.name in "+-*/%^" else values.compared
        return made(node.name, parts[0], parts[1])
    return _tested(node, parts)


def _joined(kind: str, parts: Sequence[Value]) -> Value:
    """`or` and `and`: a part that is None decides nothing."""
    decides = int(kind == "any")
    if any(part is not None and values.is_true(part) == bool(decides) for part in parts):
        return decides
    return None if None in parts else 1 - decides


def _tested(node: Node, parts: Sequence[Value]) -> Value:
    """`not`, `in` and `like`."""
    first, *options = parts
    if first is None:
        return None
    if node.kind == "negated":
        return int(not values.is_true(first))
    if node.kind == "within":
        return int(any(values.compared("=", first, option) for option in options))
    return int(bool(node.pattern.search(values.text(first))))
