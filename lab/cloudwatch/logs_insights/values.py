"""Values of a query's fields, and what its functions make of them.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax-operations-functions.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax-Stats.html
A field that an event lacks is None, and an operation on None is None (assumed). A truth is 1 or 0:
https://github.com/aws-samples/serverless-typescript-demo (`filter cold_start = 1`).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from lab.cloudwatch import emf


class Moment(int):
    """Milliseconds since 1970 that are shown as a date."""


Value = str | int | float | Moment | None
Row = dict[str, Value]

_ESCAPED = re.compile(r"\\(.)")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_AnalyzeLogData-discoverable-fields.html
MOST_FIELDS = 200
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def literal(kind: str, text: str) -> Value:
    """The value of a number, a text in quotes, a truth or a period as they are written."""
    if kind == "number":
        return number(text)
    if kind == "truth":
        return int(text.lower() == "true")
    if kind == "period":
        digits = re.sub(r"\D", "", text)
        unit = text.lower().removeprefix(digits).strip()
        return int(digits) * _UNITS["ms" if unit.startswith(("ms", "milli")) else unit[0]]
    return _ESCAPED.sub(r"\1", text[1:-1])


def number(value: Value) -> int | float | None:
    """A value as a number: JSON's, or a text that is one."""
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else value
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        read = float(value)
        return int(value) if re.fullmatch(r"[+-]?[0-9]+", value) else read
    return None


def text(value: Value) -> str:
    """A value as results have it."""
    if isinstance(value, Moment):
        moment = datetime.fromtimestamp(value / 1000, timezone.utc)
        return f"{moment:%Y-%m-%d %H:%M:%S}.{value % 1000:03}"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None else str(value)


def is_true(value: Value) -> bool:
    """Whether a filter lets a value through."""
    return value is not None and (number(value) or 0) != 0


# Fields of an event.


def discovered(message: str) -> Row:
    """The fields of a JSON event, by their paths: requestParameters.items.0.instanceId."""
    event = emf.json_of(message)
    fields: Row = {}
    if isinstance(event, dict):
        with contextlib.suppress(RecursionError):  # what is deeper has no name that anybody writes
            _flatten(event, "", fields)
    return fields


def _flatten(part: Any, path: str, fields: Row) -> None:
    if isinstance(part, dict | list):
        pairs = part.items() if isinstance(part, dict) else enumerate(part)
        for key, inner in pairs:
            # A name that begins with @ is shown with another one.
            name = f"@{key}" if not path and str(key).startswith("@") else str(key)
            _flatten(inner, f"{path}.{name}" if path else name, fields)
    elif part is not None and len(fields) < MOST_FIELDS:
        fields[path] = int(part) if isinstance(part, bool) else part


# Comparisons and arithmetic.


def compared(operator: str, left: Value, right: Value) -> Value:
    """1 or 0: as numbers where both are, as texts otherwise."""
    if left is None or right is None:
        return None
    numbers = (number(left), number(right))
    first, second = numbers if None not in numbers else (text(left), text(right))
    holds: dict[str, Callable[[Any, Any], bool]] = {
        "=": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    return int(holds[operator](first, second))


def calculated(operator: str, left: Value, right: Value) -> Value:
    """A sum, a product, a power; None where it cannot be made."""
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    operations: dict[str, Callable[[], float]] = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a / b,
        "%": lambda: math.fmod(a, b),
        "^": lambda: math.pow(a, b),
    }
    try:
        return operations[operator]()
    except (ArithmeticError, ValueError):
        return None


def order(value: Value) -> tuple[Any, ...]:
    """The key of a sort: values that are not numbers come first, in natural order.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax-Sort.html
    """
    if value is None:
        return (0,)
    as_number = number(value)
    if as_number is not None:
        return (2, as_number, text(value))
    chunks = re.findall(r"[0-9]+|[^0-9]", text(value))
    return (
        1,
        *(
            (ord("0"), len(chunk), int(chunk)) if chunk.isdigit() else (ord(chunk), 0, 0)
            for chunk in chunks
        ),
    )


# Functions: the fewest and the most arguments of each.

_MANY = 99
_ONE_TEXT = ("isempty", "isblank", "strlen", "toupper", "tolower")
_ONE_NUMBER = ("abs", "ceil", "floor", "log", "sqrt")
AGGREGATES = (
    *("count", "sum", "avg", "min", "max", "count_distinct", "pct", "latest", "earliest"),
    *("sortsFirst", "sortsLast"),
)
ARGUMENTS: dict[str, tuple[int, int]] = {
    **dict.fromkeys((*_ONE_TEXT, *_ONE_NUMBER, *AGGREGATES), (1, 1)),
    **dict.fromkeys(("ltrim", "rtrim", "trim"), (1, 2)),
    **dict.fromkeys(("greatest", "least", "coalesce", "concat"), (1, _MANY)),
    **dict.fromkeys(("datefloor", "dateceil", "strcontains", "pct"), (2, 2)),
    **dict.fromkeys(("ispresent", "fromMillis", "toMillis", "bin"), (1, 1)),
    "count": (0, 1),
    "now": (0, 0),
    "substr": (2, 3),
    "replace": (3, 3),
}
# Which argument is a period.
PERIOD_AT = {"bin": 0, "datefloor": 1, "dateceil": 1}


def function_named(name: str) -> str | None:
    """A function of the lab, whatever the case it is written in (isPresent, ispresent)."""
    return {function.lower(): function for function in ARGUMENTS}.get(name.lower())


def called(name: str, args: Sequence[Value]) -> Value:
    """What a function gives that looks at its arguments only."""
    if name in _OF_ANY:
        return _OF_ANY[name](args)
    if any(arg is None for arg in args):
        return None
    return _of_texts(name, args) if name in _TEXTS else _of_numbers(name, args)


# Functions that take a field that is missing.
_OF_ANY: dict[str, Callable[[Sequence[Value]], Value]] = {
    "ispresent": lambda args: int(args[0] is not None),
    "isempty": lambda args: int(not text(args[0])),
    "isblank": lambda args: int(not text(args[0]).strip()),
    "coalesce": lambda args: next((arg for arg in args if arg is not None), None),
    "concat": lambda args: "".join(map(text, args)),
    "now": lambda args: int(datetime.now(timezone.utc).timestamp()),
}
_TEXTS = (
    *("strlen", "toupper", "tolower", "ltrim", "rtrim", "trim", "substr", "replace"),
    "strcontains",
)


def _of_texts(name: str, args: Sequence[Value]) -> Value:
    first = text(args[0])
    others = [text(arg) for arg in args[1:]]
    if name == "substr":
        begin, length = number(args[1]), number(args[2]) if len(args) > 2 else None
        if begin is None:
            return None
        return first[int(begin) :][: None if length is None else int(length)]
    made: dict[str, Callable[[], Value]] = {
        "strlen": lambda: len(first),
        "toupper": first.upper,
        "tolower": first.lower,
        "ltrim": lambda: first.lstrip(*others),
        "rtrim": lambda: first.rstrip(*others),
        "trim": lambda: first.strip(*others),
        "replace": lambda: first.replace(others[0], others[1]),
        "strcontains": lambda: int(others[0] in first),
    }
    return made[name]()


def _of_numbers(name: str, args: Sequence[Value]) -> Value:
    numbers = [number(arg) for arg in args]
    if any(value is None for value in numbers):
        return None
    operands = [value for value in numbers if value is not None]
    first = operands[0]
    period = int(operands[-1]) or 1
    made: dict[str, Callable[[], Value]] = {
        "abs": lambda: abs(first),
        "ceil": lambda: math.ceil(first),
        "floor": lambda: math.floor(first),
        "log": lambda: math.log(first) if first > 0 else None,
        "sqrt": lambda: math.sqrt(first) if first >= 0 else None,
        "greatest": lambda: max(operands),
        "least": lambda: min(operands),
        "fromMillis": lambda: Moment(first),
        "toMillis": lambda: int(first),
        "bin": lambda: Moment(first - first % period),
        "datefloor": lambda: Moment(first - first % period),
        "dateceil": lambda: Moment(first + -first % period),
    }
    return made[name]()


# Statistics.


def aggregated(name: str, listed: Sequence[Value], moments: Sequence[int]) -> Value:
    """A statistic over values and the times of their events.

    `latest`, `max` and the like give the milliseconds of @timestamp, not a date: fromMillis() makes
    one (users' queries do so: `stats latest(@timestamp) as t | display fromMillis(t)`).
    """
    pairs = [(at, value) for at, value in zip(moments, listed, strict=True) if value is not None]
    there = [value for _, value in pairs]
    if name == "count":
        return len(there)
    if name == "count_distinct":
        return len({text(value) for value in there})
    if name in _PICKS and pairs:
        pick, by = _PICKS[name]
        return _undated(pick(pairs, key=by)[1])
    numbers = [value for value in map(number, there) if value is not None]
    if name in _PICKS or not numbers:
        return None
    return sum(numbers) if name == "sum" else sum(numbers) / len(numbers)


def _by_moment(pair: tuple[int, Value]) -> Any:
    return pair[0]


def _by_value(pair: tuple[int, Value]) -> Any:
    return order(pair[1])


# Statistics that are one of the values.
_PICKS: dict[str, tuple[Any, Callable[[tuple[int, Value]], Any]]] = {
    "earliest": (min, _by_moment),
    "latest": (max, _by_moment),
    "min": (min, _by_value),
    "max": (max, _by_value),
    "sortsFirst": (min, _by_value),
    "sortsLast": (max, _by_value),
}


def percentile(listed: Sequence[Value], percent: float) -> Value:
    """The smallest value that `percent` of the values do not exceed (nearest rank: assumed)."""
    numbers = sorted(value for value in map(number, listed) if value is not None)
    if not numbers:
        return None
    return numbers[min(len(numbers), max(1, math.ceil(len(numbers) * percent / 100))) - 1]


def _undated(value: Value) -> Value:
    return int(value) if isinstance(value, Moment) else value
