"""Metric filters: what log events that match become in CloudWatch.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/MonitoringLogData.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntaxForMetricFilters.html
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from lab.cloudwatch import patterns
from lab.cloudwatch.patterns import Values

Event = tuple[int, str]  # milliseconds since 1970, message


@dataclass(frozen=True)
class MetricFilter:
    """A filter of a log group, with the one transformation that it may have."""

    name: str
    pattern: str
    group: str
    transformation: Mapping[str, Any]
    created: int  # milliseconds since 1970: earlier events are not looked at

    def shown(self) -> dict[str, Any]:
        """The filter as DescribeMetricFilters has it."""
        return {
            "filterName": self.name,
            "filterPattern": self.pattern,
            "logGroupName": self.group,
            "metricTransformations": [dict(self.transformation)],
            "creationTime": self.created,
            "applyOnTransformedLogs": False,
        }


def made(request: Mapping[str, Any]) -> MetricFilter:
    """The filter that PutMetricFilter asks for. Raises ValueError."""
    (transformation,) = request["metricTransformations"]
    patterns.parse(request["filterPattern"])
    dimensions = transformation.get("dimensions") or {}
    if len(dimensions) > 3:
        raise ValueError("a metric filter has at most three dimensions")
    if dimensions and "defaultValue" in transformation:
        raise ValueError("a metric filter with dimensions cannot have a default value")
    if transformation["metricNamespace"].startswith("AWS/"):
        raise ValueError("metricNamespace must not start with AWS/")
    return MetricFilter(
        request["filterName"],
        request["filterPattern"],
        request["logGroupName"],
        transformation,
        int(time.time() * 1000),
    )


def data(metric_filter: MetricFilter, events: Iterable[Event]) -> list[dict[str, Any]]:
    """The data that events give a filter's metric, as PutMetricData takes them.

    An event that matches counts with the filter's value, at its own time. A minute in which events
    came and none matched gives the default value, when there is metric_filter.
    """
    transformation, pattern = metric_filter.transformation, patterns.parse(metric_filter.pattern)
    published: list[dict[str, Any]] = []
    minutes: dict[int, bool] = {}
    for moment, message in events:
        values = pattern.values(message)
        minute = moment - moment % 60_000
        minutes[minute] = minutes.get(minute, False) or values is not None
        if values is None:
            continue
        value = patterns.number(_resolved(str(transformation["metricValue"]), values))
        dimensions = _dimensions(transformation.get("dimensions") or {}, values)
        if value is not None and dimensions is not None:
            published.append(_datum(transformation, moment, value, dimensions))
    default = transformation.get("defaultValue")
    if default is not None:
        published += [
            _datum(transformation, minute, float(default), [])
            for minute, matched in minutes.items()
            if not matched
        ]
    return published


def _datum(
    transformation: Mapping[str, Any], moment: int, value: float, dimensions: list[dict[str, str]]
) -> dict[str, Any]:
    return {
        "MetricName": transformation["metricName"],
        "Dimensions": dimensions,
        "Timestamp": datetime.fromtimestamp(moment / 1000, timezone.utc),
        "Value": value,
        "Unit": transformation.get("unit", "None"),
    }


def _resolved(text: str, values: Values) -> Any:
    """A value or `$.latency`, `$bytes`; MISSING where the event has none."""
    return values.get(text, patterns.MISSING) if text.startswith("$") else text


def _dimensions(request: Mapping[str, str], values: Values) -> list[dict[str, str]] | None:
    """The dimensions of an event's metric; None when the event lacks one: it gives no metric."""
    named = []
    for name, text in request.items():
        value = _resolved(text, values)
        if value is patterns.MISSING or isinstance(value, dict | list):
            return None
        named.append({"Name": name, "Value": str(value)})
    return named


def tested(text: str, messages: list[str]) -> list[dict[str, Any]]:
    """TestMetricFilter: the messages that match, numbered from 1. Raises PatternError."""
    pattern, matches = patterns.parse(text), []
    for number, message in enumerate(messages, 1):
        values = pattern.values(message)
        if values is not None:
            extracted = {name: str(value) for name, value in values.items()}
            matches.append(
                {"eventNumber": number, "eventMessage": message, "extractedValues": extracted}
            )
    return matches
