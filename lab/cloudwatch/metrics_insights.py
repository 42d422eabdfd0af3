"""Metrics Insights: SELECT MAX(x) FROM "CWAgent" WHERE … GROUP BY InstanceId ORDER BY MAX() DESC.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-metrics-insights-querylanguage.html
What a query does with series that lack a dimension it groups or selects by is not documented: here
they are left out (assumed).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lark import Lark, Tree
from lark.exceptions import LarkError

from lab.cloudwatch import series
from lab.cloudwatch.series import Key, Store

_GRAMMAR = r"""
start: "SELECT"i FUNCTION "(" name ")" "FROM"i source [where] [group] [order] [limit]
?source: schema | name
schema: "SCHEMA"i "(" name ("," name)* ")"
where: "WHERE"i condition ("AND"i condition)*
condition: name OPERATOR TEXT
group: "GROUP"i "BY"i name ("," name)*
order: "ORDER"i "BY"i FUNCTION "(" ")" [DIRECTION]
limit: "LIMIT"i NUMBER
name: WORD | QUOTED
FUNCTION.2: /(AVG|COUNT|MAX|MIN|SUM)(?=\s*\()/i
DIRECTION.2: /(ASC|DESC)\b/i
OPERATOR: "!=" | "="
TEXT: /'[^']*'/
QUOTED: /"[^"]*"/
NUMBER: /[0-9]+/
WORD: /[A-Za-z_][A-Za-z0-9_]*/
%import common.WS
%ignore WS
"""
_STATISTICS = {
    "AVG": "Average",
    "COUNT": "SampleCount",
    "MAX": "Maximum",
    "MIN": "Minimum",
    "SUM": "Sum",
}
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-metrics-insights-limits.html
_MOST_SERIES = 500
Group = tuple[tuple[str, str], ...]


class InsightsError(ValueError):
    """Not a query of Metrics Insights."""


@dataclass(frozen=True)
class Insight:
    """A query: what it takes of which series, and by which dimensions it tells them apart."""

    statistic: str
    metric: str
    namespace: str
    schema: frozenset[str] | None
    conditions: tuple[tuple[str, str, str], ...]
    by: tuple[str, ...]
    order: tuple[str, bool] | None  # statistic, descending
    limit: int

    def chooses(self, key: Key) -> bool:
        """Whether a series belongs to the query."""
        there = dict(key.dimensions)
        return (
            (key.namespace, key.name) == (self.namespace, self.metric)
            and self.schema in (None, frozenset(there))
            and all(name in there for name in self.by)
            and all(
                name in there and (there[name] == value) == (operator == "=")
                for name, operator, value in self.conditions
            )
        )

    def run(
        self, store: Store, start: float, end: float, period: int
    ) -> dict[Group, dict[float, float]]:
        """Values by the beginnings of periods, for each group that has any."""
        points: dict[Group, list[series.Point]] = {}
        for key in store.all():
            if self.chooses(key):
                there = dict(key.dimensions)
                group = tuple((name, there[name]) for name in self.by)
                points.setdefault(group, []).extend(store.between(key, start, end))
        by_group = {group: listed for group, listed in points.items() if listed}
        if self.order:
            statistic, descending = self.order
            by_group = dict(
                sorted(
                    by_group.items(),
                    key=lambda pair: series.statistic(pair[1], statistic) or 0.0,
                    reverse=descending,
                )
            )
        chosen = list(by_group.items())[: self.limit]
        return {
            group: dict(series.periods(listed, start, period, self.statistic))
            for group, listed in chosen
        }


def is_insight(text: str) -> bool:
    """Whether an expression is a query, not metric math."""
    return re.match(r"\s*SELECT\b", text, re.IGNORECASE) is not None


@lru_cache(maxsize=256)
def parse(text: str) -> Insight:
    """Read a query. Raises InsightsError."""
    try:
        tree = _parser().parse(text)
    except LarkError as error:
        raise InsightsError(str(error).splitlines()[0]) from None
    parts = {str(child.data): child for child in tree.children if isinstance(child, Tree)}
    function, metric, source = (_any(child) for child in tree.children[:3])
    names = (
        [_name(child) for child in source.children] if source.data == "schema" else [_name(source)]
    )
    order = parts.get("order")
    by = tuple(_name(child) for child in parts["group"].children) if "group" in parts else ()
    return Insight(
        _STATISTICS[str(function).upper()],
        _name(metric),
        names[0],
        frozenset(names[1:]) if source.data == "schema" else None,
        tuple(_condition(child) for child in parts["where"].children) if "where" in parts else (),
        by,
        _order(order) if order is not None else None,
        int(str(parts["limit"].children[0])) if "limit" in parts else _MOST_SERIES,
    )


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="earley", maybe_placeholders=False)


def _any(node: Any) -> Any:
    return node


def _name(node: Any) -> str:
    word = node.children[0] if isinstance(node, Tree) else node
    return str(word).strip('"')


def _condition(node: Any) -> tuple[str, str, str]:
    name, operator, value = node.children
    return _name(name), str(operator), str(value).strip("'")


def _order(node: Any) -> tuple[str, bool]:
    function, *direction = node.children
    return _STATISTICS[str(function).upper()], bool(direction) and str(
        direction[0]
    ).upper() == "DESC"


def label(group: Group, insight: Insight) -> str:
    """What a series of a query is called."""
    return " ".join(value for _, value in group) or insight.metric
