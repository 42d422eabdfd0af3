"""The lab's CloudWatch: what it makes of data, and what it answers about them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from moto.cloudwatch.exceptions import ValidationError

from lab.cloudwatch import reading, series

NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)


def at(second: int) -> datetime:
    return datetime.fromtimestamp(NOON.timestamp() + second, timezone.utc)


def datum(second: int, value: float, **more: Any) -> dict[str, Any]:
    return {"MetricName": "used", "Timestamp": at(second), "Value": value, **more}


def store(*data: dict[str, Any]) -> series.Store:
    made = series.Store()
    made.put("Kiln", data)
    return made


def ask(of: series.Store, stat: str = "Sum", period: int = 60, **more: Any) -> list[Any]:
    metric = {"Namespace": "Kiln", "MetricName": "used", **more}
    query = {"Id": "q", "MetricStat": {"Metric": metric, "Period": period, "Stat": stat}}
    asked = {"MetricDataQueries": [query], "StartTime": at(20), "EndTime": at(600)}
    (found,) = reading.metric_data(of, asked)["MetricDataResults"]
    return list(zip(found["Timestamps"], found["Values"], strict=True))


GPU = [{"Name": "index", "Value": "0"}]


def test_a_query_names_all_dimensions_of_one_series() -> None:
    of = store(datum(0, 1), datum(0, 2, Dimensions=GPU))
    assert ask(of) == [(NOON, 1)]
    assert ask(of, Dimensions=GPU) == [(NOON, 2)]
    assert ask(of, Dimensions=[{"Name": "index", "Value": "1"}]) == []


def test_periods_begin_on_the_minute_and_come_newest_first() -> None:
    of = store(datum(59, 1), datum(60, 2), datum(119, 3), datum(180, 4))
    assert ask(of) == [(at(180), 4), (at(60), 5), (NOON, 1)]


def test_only_high_resolution_keeps_the_second() -> None:
    of = store(datum(27, 1), datum(33, 2, StorageResolution=1))
    assert ask(of, period=10) == [(at(30), 2)]


@pytest.mark.parametrize(
    ("stat", "value"),
    [("SampleCount", 4), ("Sum", 10), ("Average", 2.5), ("Minimum", 1), ("Maximum", 4)],
)
def test_values_counts_and_sets_are_added_up(stat: str, value: float) -> None:
    of = store(
        {"MetricName": "used", "Timestamp": NOON, "Values": [1, 3], "Counts": [1, 1]},
        {
            "MetricName": "used",
            "Timestamp": NOON,
            "StatisticValues": {"SampleCount": 2, "Sum": 6, "Minimum": 2, "Maximum": 4},
        },
    )
    assert ask(of, stat) == [(NOON, value)]


def test_percentiles_need_the_values() -> None:
    values = store(*(datum(0, number) for number in range(1, 101)))
    assert ask(values, "p99") == [(NOON, 99)]
    whole = {"SampleCount": 2, "Sum": 6, "Minimum": 2, "Maximum": 4}
    assert (
        ask(store({"MetricName": "used", "Timestamp": NOON, "StatisticValues": whole}), "p99") == []
    )


@pytest.mark.parametrize(("stat", "period"), [("Sum", 90), ("Sum", 45), ("Median", 60)])
def test_periods_and_statistics_that_do_not_exist_are_refused(stat: str, period: int) -> None:
    with pytest.raises(ValidationError):
        ask(store(datum(0, 1)), stat, period)


def test_each_series_is_listed_once_by_the_dimensions_it_has() -> None:
    both = [*GPU, {"Name": "InstanceId", "Value": "i-1"}]
    of = series.Store()
    of.put("Kiln", [{"MetricName": "used", "Value": 1, "Dimensions": both}] * 2)
    of.put("Kiln", [{"MetricName": "used", "Value": 1, "Dimensions": GPU}])
    of.put("Other", [{"MetricName": "used", "Value": 1}])
    listed = reading.listed(of, {"Namespace": "Kiln", "Dimensions": [{"Name": "index"}]})
    assert [len(metric["Dimensions"]) for metric in listed["Metrics"]] == [2, 1]
    named = reading.listed(of, {"Dimensions": [{"Name": "InstanceId", "Value": "i-2"}]})
    assert named["Metrics"] == []
