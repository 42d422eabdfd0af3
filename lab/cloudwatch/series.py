"""Metrics as CloudWatch keeps them: a series for each namespace, name and set of dimensions.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_concepts.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html
"""

from __future__ import annotations

import bisect
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

BASIC = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")
_PERCENTILE = re.compile(r"p([0-9]{1,2}(\.[0-9]{1,10})?|100)")
Dimensions = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Key:
    """What tells one series from another; `dimensions` are sorted by name."""

    namespace: str
    name: str
    dimensions: Dimensions = ()


@dataclass(frozen=True)
class Point:
    """What was reported at one moment (seconds since 1970): values with how often each came.

    A statistic set without its values has `values` empty, its sums in the other fields.
    """

    at: float
    count: float
    total: float
    low: float
    high: float
    unit: str = "None"
    values: tuple[tuple[float, float], ...] = ()


def dimensions(listed: Iterable[Mapping[str, Any]]) -> Dimensions:
    """The dimensions of a request."""
    return tuple(sorted((str(item["Name"]), str(item.get("Value", ""))) for item in listed))


def point(datum: Mapping[str, Any], now: float) -> Point:
    """A datum of PutMetricData. Without StorageResolution 1 its time is that of its minute."""
    moment = datum.get("Timestamp")
    at = seconds(moment) if isinstance(moment, datetime) else now
    at -= at % (1 if datum.get("StorageResolution") == 1 else 60)
    unit, stats = str(datum.get("Unit") or "None"), datum.get("StatisticValues")
    listed = [float(value) for value in datum.get("Values") or []]
    if listed:
        counts = [float(count) for count in datum.get("Counts") or [1.0] * len(listed)]
        pairs = tuple(zip(listed, counts, strict=True))
        total = sum(value * count for value, count in pairs)
        return Point(at, sum(counts), total, min(listed), max(listed), unit, pairs)
    if stats:
        low, high = float(stats["Minimum"]), float(stats["Maximum"])
        count = float(stats["SampleCount"])
        # Percentiles exist for a set whose values are all the same, or that has one.
        values = ((low, count),) if count == 1 or low == high else ()
        return Point(at, count, float(stats["Sum"]), low, high, unit, values)
    value = float(datum.get("Value") or 0)
    return Point(at, 1, value, value, value, unit, ((value, 1.0),))


class Store:
    """All series of an account in a region."""

    def __init__(self) -> None:
        self._points: dict[Key, list[Point]] = defaultdict(list)
        self._lock = threading.Lock()

    def put(self, namespace: str, data: Iterable[Mapping[str, Any]]) -> None:
        """Keep the data of PutMetricData."""
        now = time.time()
        for datum in data:
            key = Key(namespace, str(datum["MetricName"]), dimensions(datum.get("Dimensions", ())))
            with self._lock:
                bisect.insort(self._points[key], point(datum, now), key=lambda point: point.at)

    def all(self) -> list[Key]:
        """All series, in the order in which they came."""
        with self._lock:
            return list(self._points)

    def newest(self, key: Key) -> float:
        """When a series was last reported."""
        return self._points[key][-1].at

    def between(self, key: Key, start: float, end: float, unit: str | None = None) -> list[Point]:
        """The points of a series from `start` on and before `end`."""
        with self._lock:
            listed = self._points.get(key, [])
            low = bisect.bisect_left(listed, start, key=lambda point: point.at)
            high = bisect.bisect_left(listed, end, key=lambda point: point.at)
            points = listed[low:high]
        return [point for point in points if unit is None or point.unit == unit]


def statistic(points: list[Point], name: str) -> float | None:
    """A statistic over points; None where there is none. Raises ValueError for an unknown one."""
    if not points:
        return None
    count, total = sum(point.count for point in points), sum(point.total for point in points)
    if name in BASIC:
        return {
            "SampleCount": count,
            "Sum": total,
            "Average": total / count if count else 0.0,
            "Minimum": min(point.low for point in points),
            "Maximum": max(point.high for point in points),
        }[name]
    percentile = _PERCENTILE.fullmatch(name)
    if percentile is None:
        raise ValueError(name)
    if any(not point.values for point in points):
        return None
    return _percentile(
        sorted(pair for point in points for pair in point.values), float(percentile[1])
    )


def _percentile(pairs: list[tuple[float, float]], percent: float) -> float:
    """The smallest value that so many percent of all are not above (CloudWatch's own estimates
    between two values; how is not published)."""
    wanted, seen = sum(count for _, count in pairs) * percent / 100, 0.0
    for value, count in pairs:
        seen += count
        if seen >= wanted:
            return value
    return pairs[-1][0]


def periods(points: list[Point], start: float, period: int, name: str) -> list[tuple[float, float]]:
    """A statistic for each period that has data: (its beginning, value), oldest first."""
    grouped: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        grouped[int((point.at - start) // period)].append(point)
    values = ((start + number * period, statistic(grouped[number], name)) for number in grouped)
    return sorted((at, value) for at, value in values if value is not None)


def begin(moment: datetime, period: int) -> float:
    """Where the first period of a request starts: its start, rounded down.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricStatistics.html
    """
    at = seconds(moment)
    return at - at % (period if period < 60 else 60)


def seconds(moment: datetime) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
