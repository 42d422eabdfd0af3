"""The embedded metric format: log events that say which metrics they hold.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
The older form, without `_aws`, counts where the request has the header x-amzn-logs-format:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Generation_PutLogEvents.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

FORMAT = "json/emf"
_MOST_VALUES = 100


def data(message: str, *, header: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Namespace and datum of each metric of an event; nothing for one that is not of this format.

    `header` says whether the request named the format.
    """
    try:
        event = json.loads(message)
    except ValueError:
        return
    if not isinstance(event, dict):
        return
    about = event.get("_aws") if isinstance(event.get("_aws"), dict) else event if header else {}
    moment = _moment((about or {}).get("Timestamp"))
    directives = (about or {}).get("CloudWatchMetrics")
    if moment is None or not isinstance(directives, list):
        return
    for directive in directives:
        for names in directive.get("Dimensions", [[]]):
            dimensions = [{"Name": name, "Value": event.get(name)} for name in names]
            if any(not isinstance(dimension["Value"], str) for dimension in dimensions):
                continue
            for metric in directive.get("Metrics", []):
                values = _values(event.get(metric["Name"]))
                if values:
                    yield (
                        directive["Namespace"],
                        {
                            "MetricName": metric["Name"],
                            "Dimensions": dimensions,
                            "Timestamp": moment,
                            "Unit": metric.get("Unit", "None"),
                            "Values": values,
                            "StorageResolution": metric.get("StorageResolution", 60),
                        },
                    )


def _moment(text: Any) -> datetime | None:
    """Milliseconds since 1970, a number or (in the older form) its text."""
    try:
        return datetime.fromtimestamp(int(text) / 1000, timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _values(value: Any) -> list[float]:
    listed = value if isinstance(value, list) else [value]
    numbers = [
        item for item in listed if isinstance(item, int | float) and not isinstance(item, bool)
    ]
    whole = len(numbers) == len(listed) and len(listed) <= _MOST_VALUES
    return [float(number) for number in numbers] if whole else []
