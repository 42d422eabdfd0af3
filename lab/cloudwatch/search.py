"""SEARCH expressions: which series a query like '{Kiln,InstanceId} MetricName="x" i-1' means.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/search-expression-syntax.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from lark import Lark, Tree
from lark.exceptions import LarkError

from lab.cloudwatch.series import Key

_GRAMMAR = r"""
start: [schema] [any]
schema: "{" WORD ("," WORD)* "}"
?any: all (_OR all)*
?all: one (_AND? one)*
?one: _NOT one -> without
    | "(" any ")"
    | WORD "=" WORD -> having
    | WORD "=" "(" either ")" -> having_any
    | WORD -> term
either: WORD (_OR WORD)*
_AND.2: /AND(?=[\s(])/
_OR.2: /OR(?=[\s(])/
_NOT.2: /NOT(?=[\s(])/
WORD: /"[^"]*"|[^\s"(){}=,]+/
%import common.WS
%ignore WS
"""
# A term's parts: 'i-0ab' is i and 0ab, 'FooBar' is foo and bar.
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_WITHOUT_SCHEMA = {"Namespace": "namespace", "MetricName": "name"}


class SearchError(ValueError):
    """Not a search expression."""


def find(text: str, keys: Iterable[Key]) -> list[Key]:
    """The series that a search means. Raises SearchError."""
    try:
        tree = _parser().parse(text)
    except LarkError as error:
        raise SearchError(str(error).splitlines()[0]) from None
    schema = next(tree.find_data("schema"), None)
    wanted = next(
        (child for child in tree.children if child is not None and child is not schema), None
    )
    chosen = [key for key in keys if schema is None or _fits(key, schema)]
    return [key for key in chosen if wanted is None or _holds(wanted, key)]


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)


def _fits(key: Key, schema: Tree[Any]) -> bool:
    """A schema names the namespace and exactly the dimensions."""
    namespace, *names = [_bare(str(word)) for word in schema.children]
    return key.namespace == namespace and {name for name, _ in key.dimensions} == set(names)


def _holds(node: Any, key: Key) -> bool:
    kind = node.data
    if kind in ("any", "all"):
        parts = (_holds(child, key) for child in node.children)
        return any(parts) if kind == "any" else all(parts)
    if kind == "without":
        return not _holds(node.children[0], key)
    if kind == "term":
        return any(_matcher(node.children[0])(text) for text in _texts(key))
    name, *wanted = node.children
    values: list[Any] = wanted[0].children if kind == "having_any" else wanted
    own = _value(key, _bare(name))
    return own is not None and any(_matcher(value)(own) for value in values)


def _texts(key: Key) -> list[str]:
    return [key.namespace, key.name, *(text for pair in key.dimensions for text in pair)]


def _value(key: Key, name: str) -> str | None:
    if name in _WITHOUT_SCHEMA:
        return str(getattr(key, _WITHOUT_SCHEMA[name]))
    return dict(key.dimensions).get(name)


def _matcher(word: str) -> Callable[[str], bool]:
    """In quotes a word is the whole; without, its parts are among the other's, in order."""
    text = _bare(word)
    if word.startswith('"'):
        return lambda actual: actual == text
    parts = _parts(text)

    def holds(actual: str) -> bool:
        there = _parts(actual)
        starts = range(len(there) - len(parts) + 1)
        return any(there[start : start + len(parts)] == parts for start in starts)

    return holds


def _parts(text: str) -> list[str]:
    return [part.lower() for part in _TOKEN.findall(text)]


def _bare(word: str) -> str:
    return word.strip('"')
