"""A query of Logs Insights, read and checked before it runs.

The language: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax.html and its
pages per command. What CloudWatch refuses is from them and from messages that users report; each is
named where it is checked. Commands that the lab does not have are refused with a message of their
own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lark import Lark, Token
from lark.exceptions import LarkError, UnexpectedInput

from lab.cloudwatch.logs_insights import values
from lab.cloudwatch.logs_insights.check import check
from lab.cloudwatch.logs_insights.query import MOST_ROWS, Command, Item, Node, Query, QueryError

# Commands that CloudWatch has and the lab has not.
ABSENT = (
    *("addtotals", "anomaly", "diff", "expand", "filterIndex", "join", "lookup", "pattern"),
    *("relevantfields", "subqueries", "unmask", "unnest"),
)
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_AnalyzeLogData_Classes.html
NOT_INFREQUENT = ("pattern", "diff", "filterIndex", "unmask")


@lru_cache(maxsize=256)
def parse(text: str) -> Query:
    """Read a query. Raises QueryError."""
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _unexpected(text, error) from None
    except LarkError as error:
        raise QueryError(str(error).splitlines()[0], 0, len(text)) from None
    reader = _Reader(text)
    source, *commands = list[Any](tree.children)
    query = Query(
        text,
        tuple(reader.command(command) for command in commands),
        None if source is None else reader.source(source),
    )
    check(query)
    return query


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=True, propagate_positions=True)


def _unexpected(text: str, error: UnexpectedInput) -> QueryError:
    """CloudWatch's words for a symbol that cannot stand where it does, as users report them:
    https://github.com/boto/boto3/issues/3450 has those before 2023."""
    start = error.pos_in_stream
    token = getattr(error, "token", None)
    if start is None or getattr(token, "type", "") == "$END":
        return QueryError("unexpected end of the query", len(text), len(text))
    word = re.compile(r"\w+|.", re.DOTALL).match(text, start)
    symbol = word.group() if word else ""
    before = text[:start].rstrip()
    if before in ("", "|") or before.endswith("|"):
        for name in ABSENT:
            if name.lower() == symbol.lower():
                message = f"the lab does not have the command {name}"
                return QueryError(message, start, start + len(symbol), name)
    return QueryError(f"unexpected symbol found {symbol}", start, start + len(symbol))


class _Reader:
    """Makes commands and expressions of what the grammar found."""

    def __init__(self, text: str) -> None:
        self._text = text

    def source(self, tree: Any) -> dict[str, tuple[str, ...]]:
        """SOURCE logGroups(namePrefix: […], class: […]).

        https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax-Source.html
        """
        chosen: dict[str, tuple[str, ...]] = {}
        for choice in filter(None, tree.children):
            name, *texts = choice.children
            if str(name) not in ("namePrefix", "class"):
                raise _at(name, f"the lab does not have {name} in SOURCE")
            chosen[str(name)] = tuple(_unquoted(text) for text in texts)
        if len(chosen.get("namePrefix", ())) > 5:
            raise _at(tree, "namePrefix takes up to five prefixes")
        return chosen

    def command(self, tree: Any) -> Command:
        made = Command(str(tree.data).partition("_")[0], *_place(tree))
        children = tree.children
        read: dict[str, Callable[[], dict[str, Any]]] = {
            "fields": lambda: {"items": tuple(map(self.item, children))},
            "display": lambda: {"items": tuple(map(self.item, children))},
            "filter": lambda: {"node": self.node(children[0])},
            "stats": lambda: self.stats(children),
            "sort": lambda: {"keys": tuple(map(self.key, children))},
            "limit": lambda: {"number": self.limit(children[1])},
            "dedup": lambda: {"names": tuple(map(plain, children))},
            "parse": lambda: self.extraction(made, children),
        }
        return replace(made, **read[made.name]())

    def stats(self, children: Sequence[Any]) -> dict[str, Any]:
        *items, by = children
        grouped = () if by is None else tuple(map(self.item, by.children))
        return {"items": tuple(map(self.item, items)), "by": grouped}

    def extraction(self, command: Command, children: Sequence[Any]) -> dict[str, Any]:
        """What `parse` reads, its pattern and the fields that it makes."""
        subject, wanted, *names = children
        node = self.subject(subject, command)
        if wanted.type == "STRING":
            named = tuple(map(plain, names))
            return {"node": node, "pattern": _glob(wanted, len(names)), "names": named}
        pattern = _regex(wanted)
        if not pattern.groupindex:
            raise _at(wanted, "parse needs a named group: (?<name>…)")
        return {"node": node, "pattern": pattern, "names": tuple(pattern.groupindex)}

    def subject(self, name: Token | None, command: Command) -> Node:
        """The field that `parse` reads."""
        if name is None:
            return Node("field", "@message", (), command.start, command.end)
        return Node("field", plain(name), (), *_place(name))

    def item(self, tree: Any) -> Item:
        node, alias = tree.children
        made = self.node(node)
        if alias is not None:
            return Item(made, plain(alias), is_alias=True)
        written = made.name if made.kind == "field" else self._text[made.start : made.end]
        return Item(made, written, is_alias=False)

    def key(self, tree: Any) -> tuple[Node, bool]:
        """What a sort goes by; without a direction it descends, as moto has it."""
        node, direction = tree.children
        return self.node(node), direction is None or direction.lower() == "desc"

    def limit(self, token: Token) -> int:
        number = float(token)
        if number != int(number) or not 1 <= number <= MOST_ROWS:
            raise _at(token, f"limit takes a number from 1 to {MOST_ROWS}")
        return int(number)

    def node(self, tree: Any) -> Node:
        """An expression."""
        start, end = _place(tree)
        kind = str(tree.data)
        children = tree.children
        if kind in ("number", "text", "truth", "period", "star"):
            value = values.literal(kind, str(children[0])) if children else None
            plain_kind = kind if kind in ("period", "star") else "literal"
            made = Node(plain_kind, "", (), start, end, value)
        elif kind == "field":
            made = Node(kind, plain(children[0]), (), start, end)
        elif kind == "call":
            name, *args = children
            parts = tuple(self.node(arg) for arg in args if arg is not None)
            made = self.called(str(name), parts, start, end)
        elif kind == "within":
            subject, negated, *options = children
            parts = tuple(self.node(part) for part in (subject, *filter(None, options)))
            made = _perhaps_not(Node("within", "", parts, start, end), negated)
        elif kind in ("like", "matches"):
            made = self.like(kind, children, start, end)
        elif kind in ("sum", "product", "compares"):
            made = self.left_to_right(children, start, end)
        else:
            name = "^" if kind == "power" else ""
            made = Node(kind, name, tuple(map(self.node, children)), start, end)
        return made

    def left_to_right(self, children: Sequence[Any], start: int, end: int) -> Node:
        made = self.node(children[0])
        for operator, child in zip(children[1::2], children[2::2], strict=True):
            made = Node("operation", str(operator), (made, self.node(child)), start, end)
        return made

    def like(self, kind: str, children: Sequence[Any], start: int, end: int) -> Node:
        subject, *rest = children
        negated, wanted = rest if kind == "like" else (None, rest[0])
        pattern = (
            _regex(wanted) if wanted.type == "REGEX" else re.compile(re.escape(_unquoted(wanted)))
        )
        made = Node("like", "", (self.node(subject),), start, end, pattern=pattern)
        return _perhaps_not(made, negated)

    def called(self, name: str, args: tuple[Node, ...], start: int, end: int) -> Node:
        function = values.function_named(name)
        if function is None:
            raise QueryError(f"the lab does not have the function {name}", start, end)
        few, many = values.ARGUMENTS[function]
        if not few <= len(args) <= many:
            raise QueryError(f"invalid number of arguments for {function}: {len(args)}", start, end)
        for number, arg in enumerate(args):
            if (arg.kind == "period") != (number == values.PERIOD_AT.get(function)):
                raise QueryError(f"invalid argument for {function}", arg.start, arg.end)
            if arg.kind == "star" and function != "count":
                raise QueryError("unexpected symbol found *", arg.start, arg.end)
        return Node(
            "aggregate" if function in values.AGGREGATES else "call", function, args, start, end
        )


def _perhaps_not(node: Node, negated: Token | None) -> Node:
    return node if negated is None else Node("negated", "", (node,), node.start, node.end)


def _place(tree: Any) -> tuple[int, int]:
    if isinstance(tree, Token):
        return int(tree.start_pos or 0), int(tree.end_pos or 0)
    return int(getattr(tree.meta, "start_pos", 0)), int(getattr(tree.meta, "end_pos", 0))


def _at(tree: Any, message: str) -> QueryError:
    return QueryError(message, *_place(tree))


def plain(name: Any) -> str:
    """A field's name without the backquotes that a character such as - needs."""
    return str(name).replace("`", "")


def _unquoted(text: str) -> str:
    return str(values.literal("text", text))


def _regex(token: Token) -> re.Pattern[str]:
    """A regular expression between slashes, with Python's name for a named group."""
    text = re.sub(r"\(\?<(?![=!])@?(\w+)>", r"(?P<\1>", str(token)[1:-1]).replace(r"\/", "/")
    try:
        return re.compile(text)
    except re.error as error:
        raise _at(token, f"invalid regular expression: {error}") from None


def _glob(token: Token, names: int) -> re.Pattern[str]:
    """`user=*, method:*` as a regular expression with a group for each *; a last one is greedy."""
    first, *parts = [re.escape(part) for part in _unquoted(str(token)).split("*")]
    if len(parts) != names:
        raise _at(token, f"the pattern has {len(parts)} wildcards and {names} names")
    groups = [f"(.*?){part}" for part in parts[:-1]]
    last = parts[-1] if parts else ""
    groups.append(f"(.*?){last}" if last else "(.*)")
    return re.compile(first + "".join(groups), re.DOTALL)
