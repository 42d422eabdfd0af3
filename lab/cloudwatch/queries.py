"""The queries of GetMetricData and of alarms: series, and metric math over them.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/using-metric-math.html
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from lark import Lark
from lark.exceptions import LarkError

from lab.cloudwatch import functions, metrics_insights, series
from lab.cloudwatch.functions import Line, Value
from lab.cloudwatch.series import Key, Store

_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    ">": lambda a, b: float(a > b),
    ">=": lambda a, b: float(a >= b),
    "<": lambda a, b: float(a < b),
    "<=": lambda a, b: float(a <= b),
    "==": lambda a, b: float(a == b),
    "!=": lambda a, b: float(a != b),
    "or": lambda a, b: float(bool(a) or bool(b)),
    "and": lambda a, b: float(bool(a) and bool(b)),
    "power": math.pow,
}
_NAMED = ("or", "and", "power")
QueryError = functions.QueryError


@dataclass
class Evaluation:
    """The queries of one request and the time they are about. Results are computed once."""

    store: Store
    queries: Mapping[str, Mapping[str, Any]]
    start: float
    end: float
    done: dict[str, Value] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)

    def result(self, name: str) -> Value:
        """What a query gives. Raises QueryError."""
        if name in self.going:
            raise QueryError(f"{name} refers to itself")
        if name not in self.queries:
            raise QueryError(f"there is no query {name}")
        if name not in self.done:
            self.going.add(name)
            query = self.queries[name]
            self.done[name] = (
                self._series(query) if "MetricStat" in query else self._expression(query)
            )
            self.going.discard(name)
        return self.done[name]

    def period(self) -> int:
        """The period of the queries: that of the first series, or of an expression."""
        for query in self.queries.values():
            period = query.get("MetricStat", query).get("Period")
            if period:
                return int(period)
        return 60

    def line(self, key: Key, statistic: str, period: int, unit: str | None = None) -> Line:
        """One series, as a line over the periods. Raises QueryError."""
        points = self.store.between(key, self.start, self.end, unit)
        try:
            values = series.periods(points, self.start, period, statistic)
        except ValueError:
            raise QueryError(f"the statistic {statistic} is not supported") from None
        return Line(dict(values), key.name)

    def _series(self, query: Mapping[str, Any]) -> Line:
        stat = query["MetricStat"]
        metric = stat["Metric"]
        dimensions = series.dimensions(metric.get("Dimensions", ()))
        key = Key(metric["Namespace"], metric["MetricName"], dimensions)
        return self.line(key, stat["Stat"], int(stat["Period"]), stat.get("Unit"))

    def _expression(self, query: Mapping[str, Any]) -> Value:
        text = str(query["Expression"])
        if metrics_insights.is_insight(text):
            return self._insight(text, int(query.get("Period") or 0) or self.period())
        try:
            tree = _parser().parse(text)
        except LarkError as error:
            raise QueryError(str(error).splitlines()[0]) from None
        return self._value(tree)

    def _insight(self, text: str, period: int) -> Value:
        """A line for each group; without groups one, also where no series is there."""
        try:
            insight = metrics_insights.parse(text)
        except metrics_insights.InsightsError as error:
            raise QueryError(str(error)) from None
        by_group = insight.run(self.store, self.start, self.end, period)
        if not insight.by:
            return Line(by_group.get((), {}), insight.metric)
        return [
            Line(values, metrics_insights.label(group, insight))
            for group, values in by_group.items()
        ]

    def _value(self, node: Any) -> Value:
        kind, parts = str(node.data), list(node.children)
        if kind in ("number", "text", "named"):
            return self._word(kind, str(parts[0]))
        if kind == "array":
            return [line for part in parts for line in functions.lines(self._value(part))]
        if kind == "negated":
            return functions.each(operator.sub, 0.0, self._value(parts[0]))
        if kind == "call":
            name, *operands = parts
            arguments = [self._value(part) for part in operands if part is not None]
            return functions.call(str(name), arguments, self)
        return self._operators(kind, parts)

    def _word(self, kind: str, text: str) -> Value:
        if kind == "number":
            return float(text)
        if kind == "text":
            return text[1:-1]
        return text if text in functions.WORDS else self.result(text)

    def _operators(self, kind: str, parts: list[Any]) -> Value:
        """Operators of one strength, from the left. Some stand for their signs."""
        value = self._value(parts[0])
        signs = [kind] * len(parts[1:]) if kind in _NAMED else parts[1::2]
        others = parts[1:] if kind in _NAMED else parts[2::2]
        for sign, part in zip(signs, others, strict=True):
            value = functions.each(_OPERATORS[str(sign)], value, self._value(part))
        return value


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = Path(__file__).with_name("math.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=False)


def period_of(queries: Sequence[Any]) -> int:
    """The period of an alarm's queries, as moto keeps them."""
    return Evaluation(Store(), _plain(queries), 0, 0).period()


def of_alarm(store: Store, queries: Sequence[Any], start: float, end: float) -> dict[float, float]:
    """The values that an alarm's queries return: those of the one with ReturnData."""
    evaluation = Evaluation(store, _plain(queries), start, end)
    (name,) = [query.id for query in queries if query.return_data in (None, True, "true")]
    value = evaluation.result(name)
    if not isinstance(value, Line):
        raise QueryError(f"{name} is not one series")
    return value.values


def _plain(queries: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """moto's queries of an alarm as GetMetricData has them."""
    by_id: dict[str, dict[str, Any]] = {}
    for query in queries:
        if query.expression:
            by_id[query.id] = {"Expression": query.expression, "Period": query.period}
            continue
        stat = query.metric_stat
        dimensions = [
            {"Name": dimension.name, "Value": dimension.value}
            for dimension in stat.metric.dimensions
        ]
        metric = {
            "Namespace": stat.metric.namespace,
            "MetricName": stat.metric.metric_name,
            "Dimensions": dimensions,
        }
        by_id[query.id] = {
            "MetricStat": {
                "Metric": metric,
                "Period": stat.period,
                "Stat": stat.stat,
                "Unit": stat.unit,
            }
        }
    return by_id
