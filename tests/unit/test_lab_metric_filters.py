"""Metric filters of the lab: what the events of a log give a metric."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.cloudwatch import metric_filters


def made(pattern: str, **more: Any) -> metric_filters.MetricFilter:
    transformation = {"metricName": "m", "metricNamespace": "Kiln", "metricValue": "1", **more}
    return metric_filters.made(
        {
            "filterName": "one",
            "filterPattern": pattern,
            "logGroupName": "/g",
            "metricTransformations": [transformation],
        }
    )


def given(metric_filter: metric_filters.MetricFilter, *events: dict[str, Any] | str) -> list[Any]:
    """(second, value, dimensions) of each datum; the events came 40 seconds apart."""
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    found = metric_filters.data(metric_filter, [(n * 40_000, text) for n, text in enumerate(texts)])
    return [
        (
            int(datum["Timestamp"].timestamp()),
            datum["Value"],
            {dimension["Name"]: dimension["Value"] for dimension in datum["Dimensions"]},
        )
        for datum in found
    ]


def test_each_event_that_matches_counts_at_its_time() -> None:
    found = given(made("{ $.xid = 79 }"), {"xid": 79}, {"xid": 13}, {"xid": 79})
    assert found == [(0, 1, {}), (80, 1, {})]


def test_the_value_and_dimensions_come_from_the_event() -> None:
    by_gpu = made("{ $.watts = * }", metricValue="$.watts", dimensions={"Gpu": "$.gpu.index"})
    event = {"watts": 70.5, "gpu": {"index": 0}}
    without = {"watts": 70.5}  # an event without the dimension gives no metric
    assert given(by_gpu, event, without, {"watts": "many"}) == [(0, 70.5, {"Gpu": "0"})]


def test_a_field_of_a_line_is_a_value() -> None:
    assert given(made("[..., bytes]", metricValue="$bytes"), "GET / 1534") == [(0, 1534, {})]


def test_a_minute_without_a_match_gives_the_default() -> None:
    counted = made("fatal", defaultValue=0.0)
    # The events come at 0, 40, 80 and 120 seconds.
    assert given(counted, "fatal", "fine", "fine", "fatal") == [
        (0, 1, {}),
        (120, 1, {}),
        (60, 0, {}),
    ]


@pytest.mark.parametrize(
    ("pattern", "more", "why"),
    [
        ("{ $.a == 1 }", {}, "Unexpected"),
        ("a", {"dimensions": dict.fromkeys("abcd", "$.a")}, "at most three"),
        ("a", {"dimensions": {"a": "$.a"}, "defaultValue": 0.0}, "default value"),
        ("a", {"metricNamespace": "AWS/EC2"}, "AWS/"),
    ],
)
def test_an_invalid_metric_filter_is_refused(pattern: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        made(pattern, **more)
