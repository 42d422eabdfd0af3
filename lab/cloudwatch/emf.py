"""The embedded metric format: log events that say which metrics they hold.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
The older form, without `_aws`, counts where the request has the header x-amzn-logs-format:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Generation_PutLogEvents.html
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

FORMAT = "json/emf"
_MOST_VALUES = 100


def data(message: str, *, header: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Namespace and datum of each metric of an event; nothing for one that is not of this format,
    or only like it: every event is a log event first.

    `header` says whether the request named the format.
    """
    event = json_of(message)
    if not isinstance(event, dict):
        return
    about = event.get("_aws") if isinstance(event.get("_aws"), dict) else event if header else {}
    moment = _moment((about or {}).get("Timestamp"))
    if moment is None:
        return
    for directive in _all((about or {}).get("CloudWatchMetrics"), dict):
        namespace = directive.get("Namespace")
        if not isinstance(namespace, str) or not namespace:
            continue
        for names in _all(directive.get("Dimensions", [[]]), list):
            values = [event.get(name) if isinstance(name, str) else None for name in names]
            if not all(isinstance(value, str) for value in values):
                continue
            dimensions = [
                {"Name": name, "Value": value} for name, value in zip(names, values, strict=True)
            ]
            for metric in _all(directive.get("Metrics"), dict):
                if datum := _datum(event, metric):
                    yield namespace, {**datum, "Dimensions": dimensions, "Timestamp": moment}


def json_of(message: str) -> Any:
    """The JSON of an event; None for one that is no JSON, or too deep for this Python."""
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        return None


def _all(listed: Any, kind: type) -> list[Any]:
    """The items of that kind; none of what is not a list."""
    return [item for item in listed if isinstance(item, kind)] if isinstance(listed, list) else []


def _datum(event: dict[str, Any], metric: dict[str, Any]) -> dict[str, Any] | None:
    name = metric.get("Name")
    values = _values(event.get(name)) if isinstance(name, str) and name else []
    if not values:
        return None
    unit, resolution = metric.get("Unit"), metric.get("StorageResolution")
    return {
        "MetricName": name,
        "Unit": unit if isinstance(unit, str) else "None",
        "Values": values,
        "StorageResolution": 1 if resolution == 1 else 60,
    }


def _moment(text: Any) -> datetime | None:
    """Milliseconds since 1970, a number or (in the older form) its text."""
    try:
        return datetime.fromtimestamp(int(text) / 1000, timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _values(value: Any) -> list[float]:
    listed = value if isinstance(value, list) else [value]
    numbers = [number for item in listed if (number := finite(item)) is not None]
    return numbers if len(numbers) == len(listed) <= _MOST_VALUES else []


def finite(value: Any) -> float | None:
    """A number of JSON as a metric has it; None for what is none, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
