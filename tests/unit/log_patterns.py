"""JSON filter patterns of CloudWatch Logs, which moto stores and never applies.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[[Mapping[str, Any]], bool]
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>[(){}]|&&|\|\|)|(?P<field>\$(?:\.\w+)+)|(?P<operator>[<>!]?=|[<>])"""
    r"""|(?P<exists>(?:NOT\s+)?EXISTS)|(?P<text>"(?:\\.|[^"\\])*")|(?P<word>[\w.*+-]+))"""
)
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_MISSING = object()


def parse_pattern(pattern: str) -> Test:
    """Return the test of a pattern on an event. Raises ValueError."""
    tokens, place = [], 0
    while pattern[place:].strip():
        found = _TOKEN.match(pattern, place)
        if not found:
            raise ValueError(f"{pattern}: at {pattern[place:]}")
        tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
        place = found.end()
    if tokens[:1] != [("sign", "{")] or tokens[-1] != ("sign", "}"):
        raise ValueError(f"{pattern}: not in braces")
    rest = tokens[1:-1]
    test = _either(rest)
    if rest:
        raise ValueError(f"{pattern}: unexpected {rest[0][1]}")
    return test


def _either(rest: list[tuple[str, str]]) -> Test:
    parts = [_both(rest)]
    while rest[:1] == [("sign", "||")]:
        del rest[0]
        parts.append(_both(rest))
    return lambda event: any(part(event) for part in parts)


def _both(rest: list[tuple[str, str]]) -> Test:
    parts = [_one(rest)]
    while rest[:1] == [("sign", "&&")]:
        del rest[0]
        parts.append(_one(rest))
    return lambda event: all(part(event) for part in parts)


def _one(rest: list[tuple[str, str]]) -> Test:
    kinds = [kind for kind, _ in rest[:3]]
    if rest[:1] == [("sign", "(")]:
        del rest[0]
        test = _either(rest)
        if rest[:1] != [("sign", ")")]:
            raise ValueError("a parenthesis stays open")
        del rest[0]
        return test
    if kinds[:2] == ["field", "exists"]:
        (_, field), (_, exists) = rest[:2]
        del rest[:2]
        return lambda event: (_value(event, field) is _MISSING) == exists.startswith("NOT")
    if kinds in (["field", "operator", "text"], ["field", "operator", "word"]):
        (_, field), (_, sign), (kind, text) = rest[:3]
        del rest[:3]
        holds = _comparison(sign, kind, text)
        return lambda event: (found := _value(event, field)) is not _MISSING and holds(found)
    raise ValueError(f"not a condition: {rest[:3]}")


def _value(event: Any, field: str) -> Any:
    for name in field.split(".")[1:]:
        event = event.get(name, _MISSING) if isinstance(event, Mapping) else _MISSING
    return event


def _comparison(sign: str, kind: str, text: str) -> Callable[[Any], bool]:
    if sign in _ORDER:
        limit, compare = float(text), _ORDER[sign]  # a text is no number: ValueError
        return lambda found: type(found) in (int, float) and compare(found, limit)
    return lambda found: _equal(found, kind, text) == (sign == "=")


def _equal(found: Any, kind: str, text: str) -> bool:
    if kind == "text":
        return isinstance(found, str) and fnmatch.fnmatchcase(found, text[1:-1])
    if re.fullmatch(r"[+-]?\d+(\.\d+)?", text):
        return type(found) in (int, float) and found == float(text)
    return isinstance(found, str | int | float) and fnmatch.fnmatchcase(str(found), text)
