"""Alarms on a query that gives a series for each of many: contributors, each with its own state.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Create_Metrics_Insights_Alarm.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-limits.html (the reasons)
A series without data leaves the query: nobody misses it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from lab.cloudwatch import alarms, metrics_insights
from lab.cloudwatch.alarms import Rule
from lab.cloudwatch.metrics_insights import Group, Insight
from lab.cloudwatch.series import Store

# What a user's alarm said that found no series: its policy's name begins with a capital letter.
_POLICY = {
    "breaching": "Breaching",
    "notBreaching": "NonBreaching",
    "ignore": "Ignore",
    "missing": "Missing",
}


@dataclass(frozen=True)
class Verdict:
    """The state of such an alarm (None keeps it), why, and the groups that breach."""

    state: str | None
    reason: str
    breaching: tuple[Group, ...]


def insight_of(alarm: Any) -> Insight | None:
    """The query of an alarm on one; None for other alarms."""
    for query in alarm.metric_data_queries or ():
        if query.expression and metrics_insights.is_insight(query.expression):
            return metrics_insights.parse(query.expression)
    return None


def judge(insight: Insight, rule: Rule, period: int, store: Store, now: float) -> Verdict:
    """Judge each series of a query by itself."""
    count = rule.periods + alarms.MORE_PERIODS
    step = min(period, 60)
    whole = now - now % step

    def until(end: float) -> dict[Group, list[float | None]]:
        start = end - count * period
        groups = insight.run(store, start, end, period)
        begins = [start + number * period for number in range(count)]
        return {group: [values.get(at) for at in begins] for group, values in groups.items()}

    going_on, settled = until(whole + step), until(whole)
    breaching, others = [], 0
    for group in {**settled, **going_on}:
        values = settled.get(group, [])
        newest = going_on.get(group, [None])[-1]
        if newest is not None and rule.is_final(newest, insight.statistic):
            values = going_on[group]
        if not values:
            continue
        if alarms.state(rule, values) == alarms.ALARM:
            breaching.append(group)
        else:
            others += 1
    every = len(breaching) + others
    if breaching:
        reason = f"{len(breaching)} out of {every} time series evaluated to ALARM"
        return Verdict(alarms.ALARM, reason, tuple(breaching))
    if every:
        return Verdict(alarms.OK, f"{every} time series evaluated to OK", ())
    reason = "No time series were returned by the query. Treat missing data is configured as "
    state = {"breaching": alarms.ALARM, "notBreaching": alarms.OK, "ignore": None}.get(
        rule.missing, alarms.INSUFFICIENT
    )
    return Verdict(state, f"{reason}[{_POLICY[rule.missing]}].", ())


def remember(alarm: Any, verdict: Verdict) -> None:
    """Keep what breaches, with the moment since when."""
    before = alarm.__dict__.setdefault("kiln_contributors", {})
    now = datetime.now(timezone.utc)
    alarm.kiln_contributors = {group: before.get(group, now) for group in verdict.breaching}


def shown(alarm: Any) -> list[dict[str, Any]]:
    """What DescribeAlarmContributors shows."""
    return [
        {
            "ContributorId": hashlib.sha256(repr(group).encode()).hexdigest()[:32],
            "ContributorAttributes": dict(group),
            "StateReason": alarm.state_reason,
            "StateTransitionedTimestamp": since,
        }
        for group, since in getattr(alarm, "kiln_contributors", {}).items()
    ]
