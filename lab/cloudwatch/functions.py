"""The functions of metric math, on numbers, lines (a value for each period) and arrays of lines.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/using-metric-math.html
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from lab.cloudwatch import search

if TYPE_CHECKING:
    from lab.cloudwatch.queries import Evaluation

# Words that stand without quotes in calls.
WORDS = ("REPEAT", "LINEAR", "ASC", "DESC", "SUM", "AVG", "MIN", "MAX")


class QueryError(ValueError):
    """Not a query that can be answered."""


@dataclass(frozen=True)
class Line:
    """A value for each period that has one, by the period's beginning, and a label."""

    values: dict[float, float] = field(default_factory=dict)
    label: str = ""


Value = Union[float, str, Line, list[Line]]  # noqa: UP007 -- evaluated at run time
_REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "SUM": math.fsum,
    "AVG": statistics.fmean,
    "MIN": min,
    "MAX": max,
    "STDDEV": statistics.pstdev,
}
_ROUND: dict[str, Callable[[float], float]] = {
    "ABS": abs,
    "CEIL": lambda value: float(math.ceil(value)),
    "FLOOR": lambda value: float(math.floor(value)),
}


def lines(value: Value) -> list[Line]:
    """A line or an array of them. Raises QueryError."""
    if isinstance(value, Line):
        return [value]
    if isinstance(value, list):
        return value
    raise QueryError(f"not a time series: {value}")


def each(do: Callable[[float, float], float], left: Value, right: Value) -> Value:
    """An operator on each pair of values; where one side has none, the result has none."""
    if isinstance(left, list):
        return [_line(each(do, series, right)) for series in left]
    if isinstance(right, list):
        return [_line(each(do, left, series)) for series in right]
    if isinstance(left, Line) and isinstance(right, Line):
        shared = [at for at in left.values if at in right.values]
        return Line(
            _safe(do, {at: (left.values[at], right.values[at]) for at in shared}), left.label
        )
    if isinstance(left, Line):
        number = _number(right)
        pairs = {at: (value, number) for at, value in left.values.items()}
        return Line(_safe(do, pairs), left.label)
    if isinstance(right, Line):
        number = _number(left)
        pairs = {at: (number, value) for at, value in right.values.items()}
        return Line(_safe(do, pairs), right.label)
    try:
        return do(_number(left), _number(right))
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise QueryError(str(error)) from None


def _safe(
    do: Callable[[float, float], float], pairs: dict[float, tuple[float, float]]
) -> dict[float, float]:
    """Values without those that cannot be computed, such as a division by zero."""
    values: dict[float, float] = {}
    for at, (left, right) in pairs.items():
        with contextlib.suppress(ZeroDivisionError, OverflowError, ValueError):
            values[at] = do(left, right)
    return values


def call(name: str, arguments: list[Value], evaluation: Evaluation) -> Value:
    """The result of a function. Raises QueryError."""
    if name in _REDUCE:
        return _reduced(_REDUCE[name], _first(name, arguments))
    if name in _ROUND:
        do = _ROUND[name]
        return each(lambda left, _: do(left), _first(name, arguments), 0.0)
    if name not in _OTHERS:
        raise QueryError(f"AMI Kiln lab: {name} is not implemented in metric math")
    return _OTHERS[name](arguments, evaluation)


def _reduced(do: Callable[[Sequence[float]], float], value: Value) -> Value:
    """Over an array: a line. Over a line: a number."""
    if isinstance(value, list):
        moments = sorted({at for line in value for at in line.values})
        return Line(
            {at: do([line.values[at] for line in value if at in line.values]) for at in moments}
        )
    (line,) = lines(value)
    return do(list(line.values.values())) if line.values else 0.0


def _fill(arguments: list[Value], evaluation: Evaluation) -> Value:
    value, with_ = _several("FILL", arguments, 2)
    if isinstance(value, list):
        return [_line(_fill([item, with_], evaluation)) for item in value]
    (line,) = lines(value)
    period, values = evaluation.period(), {}
    last: float | None = None
    for number in range(math.ceil((evaluation.end - evaluation.start) / period)):
        at = evaluation.start + number * period
        there = line.values.get(at)
        if there is None and with_ == "REPEAT":
            there = last
        elif there is None:
            there = _number(with_.values.get(at, math.nan) if isinstance(with_, Line) else with_)
        if there is not None and not math.isnan(there):
            values[at] = last = there
    return Line(values, line.label)


def _if(arguments: list[Value], evaluation: Evaluation) -> Value:
    condition, yes, *no = arguments
    if not isinstance(condition, Line):
        return yes if _number(condition) else (no[0] if no else Line())
    values: dict[float, float] = {}
    for at, holds in condition.values.items():
        value = yes if holds else (no[0] if no else None)
        if isinstance(value, Line):
            value = value.values.get(at)
        if value is not None:
            values[at] = _number(value)
    return Line(values, condition.label)


def _metrics(arguments: list[Value], evaluation: Evaluation) -> Value:
    """All series of the request; with a text those whose id has it."""
    part = str(arguments[0]) if arguments else ""
    names = [name for name, query in evaluation.queries.items() if "MetricStat" in query]
    return [line for name in names if part in name for line in lines(evaluation.result(name))]


def _search(arguments: list[Value], evaluation: Evaluation) -> Value:
    text, statistic, *period = arguments
    seconds = int(_number(period[0])) if period else evaluation.period()
    try:
        keys = search.find(str(text), evaluation.store.all())
    except search.SearchError as error:
        raise QueryError(f"SEARCH: {error}") from None
    listed = [(key, evaluation.line(key, str(statistic), seconds)) for key in keys]
    return [
        Line(line.values, " ".join([*(value for _, value in key.dimensions), key.name]))
        for key, line in listed
        if line.values
    ]


def _differences(arguments: list[Value], evaluation: Evaluation, *, per_second: bool) -> Value:
    values = []
    for line in lines(arguments[0]):
        moments = sorted(line.values)
        made = {}
        for before, at in itertools.pairwise(moments):
            step = line.values[at] - line.values[before]
            made[at] = step / (at - before) if per_second else step
        values.append(Line(made, line.label))
    return values if isinstance(arguments[0], list) else values[0]


def _sorted(arguments: list[Value], evaluation: Evaluation) -> Value:
    listed, by, order, *limit = arguments
    do = _REDUCE[str(by)]
    ranked = sorted(
        (line for line in lines(listed) if line.values),
        key=lambda line: do(list(line.values.values())),
        reverse=order == "DESC",
    )
    return ranked[: int(_number(limit[0]))] if limit else ranked


_OTHERS: dict[str, Callable[[list[Value], Any], Value]] = {
    "FILL": _fill,
    "IF": _if,
    "METRICS": _metrics,
    "SEARCH": _search,
    "SORT": _sorted,
    "RATE": lambda arguments, evaluation: _differences(arguments, evaluation, per_second=True),
    "DIFF": lambda arguments, evaluation: _differences(arguments, evaluation, per_second=False),
    "PERIOD": lambda arguments, evaluation: float(evaluation.period()),
    "REMOVE_EMPTY": lambda arguments, evaluation: [
        line for line in lines(arguments[0]) if line.values
    ],
    "DATAPOINT_COUNT": lambda arguments, evaluation: _reduced(
        lambda values: float(len(values)), arguments[0]
    ),
    "FIRST": lambda arguments, evaluation: lines(arguments[0])[0],
    "LAST": lambda arguments, evaluation: lines(arguments[0])[-1],
    "TIME_SERIES": lambda arguments, evaluation: Line(
        {
            evaluation.start + number * evaluation.period(): _number(arguments[0])
            for number in range(
                math.ceil((evaluation.end - evaluation.start) / evaluation.period())
            )
        }
    ),
}


def _first(name: str, arguments: list[Value]) -> Value:
    return _several(name, arguments, 1)[0]


def _several(name: str, arguments: list[Value], count: int) -> list[Value]:
    if len(arguments) != count:
        raise QueryError(f"{name} takes {count} arguments")
    return arguments


def _line(value: Value) -> Line:
    (line,) = lines(value)
    return line


def _number(value: Value) -> float:
    if isinstance(value, float | int):
        return float(value)
    raise QueryError(f"not a number: {value}")
