"""Filter patterns of CloudWatch Logs: which events match, and what values they have.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import LarkError

from lab.cloudwatch import emf

Values = Mapping[str, Any]
# What a pattern is tested on: how to look up a selector or a field's name.
Lookup = Callable[[str], Any]
Test = Callable[[Lookup], bool]

_TERM = re.compile(r'([?-]?)("(?:\\.|[^"\\])*"|%[^%]+%|[^\s"]+)')
_STEP = re.compile(r"""\.([A-Za-z0-9_-]+)|\.?\[(?:"([^"]*)"|'([^']*)'|([0-9]+)|(\*))\]""")
# A field of a space-delimited event: in brackets, in quotes, or a word.
_FIELD = re.compile(r'\[([^\]]*)\]|"([^"]*)"|(\S+)')
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Of a regular expression only these characters are allowed; escaped ones are.
_REGEX = re.compile(r"(?:\\.|[A-Za-z0-9:_#=@/;,\-^$?\[\]{}|*+. ])+")
MISSING: Any = object()


class PatternError(ValueError):
    """Not a filter pattern."""


@dataclass(frozen=True)
class Pattern:
    """A filter pattern; `values` is None for an event that does not match."""

    text: str
    _values: Callable[[str], Values | None]

    def values(self, message: str) -> Values | None:
        """What a matching event has: {} for terms, `$.a` or `$name` by its use in metrics."""
        return self._values(message)

    def matches(self, message: str) -> bool:
        """Whether an event matches."""
        return self._values(message) is not None


@lru_cache(maxsize=512)
def parse(text: str) -> Pattern:
    """A filter pattern. Raises PatternError."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        test = _terms(stripped)
        return Pattern(text, lambda message: {} if test(message) else None)
    try:
        tree = _parser().parse(stripped)
    except LarkError as error:
        raise PatternError(str(error).splitlines()[0]) from None
    if tree.data == "json":
        holds = _test(tree.children[0])
        return Pattern(text, lambda message: _of_json(holds, message))
    return Pattern(text, _delimited(list(tree.children)))


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = Path(__file__).with_suffix(".lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=False)


# Terms.


def _terms(text: str) -> Callable[[str], bool]:
    """Words and phrases: all must be there, `-` none of them, `?` any of them."""
    terms = _TERM.findall(text)
    if _TERM.sub("", text).strip():
        raise PatternError(f"a quotation mark without its other one: {text}")
    signs: dict[str, list[Callable[[str], bool]]] = {"": [], "-": [], "?": []}
    for sign, term in terms:
        signs[sign].append(_term(term))
    # `?` has no effect beside other terms.
    optional = signs["?"] if not signs[""] and not signs["-"] else []

    def holds(message: str) -> bool:
        return (
            all(term(message) for term in signs[""])
            and not any(term(message) for term in signs["-"])
            and (not optional or any(term(message) for term in optional))
        )

    return holds


def _term(term: str) -> Callable[[str], bool]:
    if len(term) > 1 and term[0] == term[-1] == "%":
        expression = _regex(term)
        return lambda message: expression.search(message) is not None
    phrase = _text(term)
    return lambda message: phrase in message


# JSON.


def _of_json(holds: Test, message: str) -> Values | None:
    event = emf.json_of(message)
    if not isinstance(event, dict):
        return None
    return _Event(event) if holds(lambda selector: select(event, selector)) else None


class _Event(Mapping[str, Any]):
    """A JSON event: its values by selector."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def __getitem__(self, selector: str) -> Any:
        values = select(self._event, selector)
        if values is MISSING:
            raise KeyError(selector)
        return values

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


def select(event: Any, selector: str) -> Any:
    """The value of `$.a.b[0]`; MISSING where there is none. `[*]` is any element that matches,
    and comes as a list in _Any."""
    values: list[Any] = [event]
    several = False
    for name, quoted, single, index, star in _STEP.findall(selector[1:]):
        key = name or quoted or single
        if star:
            several = True
            values = [item for item in values if isinstance(item, list) for item in item]
        elif index:
            place = int(index)
            values = [
                item[place] for item in values if isinstance(item, list) and place < len(item)
            ]
        else:
            values = [item[key] for item in values if isinstance(item, dict) and key in item]
    if several and values:
        return _Any(values)
    return values[0] if values else MISSING


class _Any(list[Any]):
    """Values of which any may match."""


# Space-delimited.


def _delimited(fields: list[Any]) -> Callable[[str], Values | None]:
    names = [None if _is_ellipsis(field) else _name(field) for field in fields]
    if names.count(None) > 1:
        raise PatternError("more than one ellipsis")
    tests = [_test(field) for field in fields if not _is_ellipsis(field)]

    def values(message: str) -> Values | None:
        words = [next(part for part in parts if part is not None) for parts in _words(message)]
        if None in names:
            place = names.index(None)
            if len(words) < len(names) - 1:
                return None
            after = len(names) - 1 - place
            words = words[:place] + words[len(words) - after :]
        elif len(words) != len(names):
            return None
        fields = dict(zip([name for name in names if name is not None], words, strict=True))
        if all(holds(lambda name: fields.get(name, MISSING)) for holds in tests):
            return {f"${name}": word for name, word in fields.items()}
        return None

    return values


def _words(message: str) -> list[tuple[str | None, ...]]:
    return [match.groups() for match in _FIELD.finditer(message)]


def _is_ellipsis(field: Any) -> bool:
    return isinstance(field, Tree) and field.data == "ellipsis"


def _name(field: Any) -> str:
    """The name of a field: the first that its condition has."""
    names = [
        str(token)
        for token in field.scan_values(lambda token: isinstance(token, Token))
        if token.type == "NAME"
    ]
    if not names:
        raise PatternError("a field has no name")
    return names[0]


# Conditions of both.


def _test(node: Any) -> Test:
    if node.data in ("any", "all"):
        parts = [_test(child) for child in node.children]
        join = any if node.data == "any" else all
        return lambda look: join(part(look) for part in parts)
    if node.data == "named":
        return lambda look: True
    subject = str(node.children[0])
    if node.data in ("missing", "there"):
        wanted = node.data == "there"
        return lambda look: (look(subject) is not MISSING) == wanted
    if node.data == "is_kind":
        kind = {"NULL": None, "TRUE": True, "FALSE": False}[str(node.children[1])]
        return lambda look: look(subject) is kind
    return _comparison(subject, str(node.children[1]), node.children[2])


def _comparison(subject: str, operator: str, value: Token) -> Test:
    if operator in ("=", "!="):
        equals = _equality(value)
        wanted = operator == "="

        def holds(look: Lookup) -> bool:
            value = look(subject)
            # A property that is not there is neither equal nor unequal.
            return value is not MISSING and _any(value, lambda item: equals(item) == wanted)

        return holds
    if value.type in ("STRING", "REGEX") or not _NUMBER.fullmatch(str(value)):
        raise PatternError(f"{operator} takes a number: {value}")
    limit = float(value)
    order: dict[str, Callable[[float], bool]] = {
        "<": lambda number: number < limit,
        "<=": lambda number: number <= limit,
        ">": lambda number: number > limit,
        ">=": lambda number: number >= limit,
    }

    def compares(look: Lookup) -> bool:
        return _any(
            look(subject), lambda item: (n := number(item)) is not None and order[operator](n)
        )

    return compares


def _any(actual: Any, holds: Callable[[Any], bool]) -> bool:
    return any(map(holds, actual)) if isinstance(actual, _Any) else holds(actual)


def _equality(value: Token) -> Callable[[Any], bool]:
    if value.type == "REGEX":
        expression = _regex(str(value))
        return lambda actual: isinstance(actual, str) and expression.search(actual) is not None
    if value.type != "STRING" and _NUMBER.fullmatch(str(value)):
        wanted = float(value)
        return lambda actual: number(actual) == wanted
    text = _text(str(value))
    wildcard = re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
    # `{ $.latency = * }` is the documentation's way to take numbers.
    kinds = (str, int, float) if value.type != "STRING" and "*" in text else (str,)
    return lambda actual: isinstance(actual, kinds) and wildcard.fullmatch(str(actual)) is not None


def number(actual: Any) -> float | None:
    """A value as a number: JSON's, or a word that is one."""
    if isinstance(actual, bool) or actual is MISSING:
        return None
    if isinstance(actual, str) and _NUMBER.fullmatch(actual):
        actual = float(actual)
    return emf.finite(actual)


def _text(term: str) -> str:
    if len(term) > 1 and term[0] == term[-1] == '"':
        return re.sub(r"\\(.)", r"\1", term[1:-1])
    return term


def _regex(term: str) -> re.Pattern[str]:
    text = term[1:-1]
    if not _REGEX.fullmatch(text):
        raise PatternError(f"not supported in a regular expression: {text}")
    try:
        return re.compile(text)
    except re.error as error:
        raise PatternError(f"{text}: {error}") from None
