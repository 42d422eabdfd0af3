"""GetMetricData, GetMetricStatistics and ListMetrics over the lab's own series."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from moto.cloudwatch.exceptions import (
    InvalidParameterCombination,
    InvalidParameterValue,
    ValidationError,
)

from lab.cloudwatch import functions, queries, series
from lab.cloudwatch.series import Key, Store

Request = Mapping[str, Any]
_PAGE = 500
_LISTED = 14 * 86400  # ListMetrics shows what was reported in the last two weeks
_RECENT = 3 * 3600
_ASCENDING = "TimestampAscending"
_PERIOD = "must be 1, 5, 10, 20, 30, or a multiple of 60"


def metric_data(store: Store, request: Request) -> dict[str, Any]:
    """GetMetricData: a result for each series that a query returns."""
    if series.seconds(request["StartTime"]) >= series.seconds(request["EndTime"]):
        raise ValidationError("The parameter StartTime must be less than the parameter EndTime.")
    listed = {query["Id"]: query for query in request["MetricDataQueries"]}
    for name, query in listed.items():
        if not re.fullmatch("[a-z][A-Za-z0-9_]*", name):
            raise ValidationError(f"The value {name} for parameter Id is not valid.")
        if "MetricStat" in query:
            _checked(int(query["MetricStat"]["Period"]))
        elif "Expression" not in query:
            raise ValidationError("A query takes either MetricStat or Expression.")
    of = queries.Evaluation(store, listed, 0, series.seconds(request["EndTime"]))
    of.start = series.begin(request["StartTime"], of.period())
    shown: list[dict[str, Any]] = []
    for name, query in listed.items():
        if query.get("ReturnData", True):
            shown += _results(of, name, query, descending=request.get("ScanBy") != _ASCENDING)
    return {"MetricDataResults": shown, "Messages": []}


def _results(
    of: queries.Evaluation, name: str, query: Request, *, descending: bool
) -> list[dict[str, Any]]:
    try:
        value = of.result(name)
        lines = functions.lines(value)
    except queries.QueryError as error:
        raise ValidationError(f"Error in expression '{name}': {error}") from None
    results = []
    for line in lines:
        moments = sorted(line.values, reverse=descending)
        label = query.get("Label") or line.label or name
        if isinstance(value, list) and query.get("Label"):
            label = f"{query['Label']} {line.label}".rstrip()
        results.append(
            {
                "Id": name,
                "Label": label,
                "Timestamps": [_moment(at) for at in moments],
                "Values": [line.values[at] for at in moments],
                "StatusCode": "Complete",
            }
        )
    return results


def _checked(period: int) -> int:
    if period not in (1, 5, 10, 20, 30) and (period < 60 or period % 60):
        raise ValidationError(f"The parameter Period {_PERIOD}")
    return period


def statistics(store: Store, request: Request) -> dict[str, Any]:
    """GetMetricStatistics."""
    basic, extended = request.get("Statistics") or [], request.get("ExtendedStatistics") or []
    if not basic and not extended:
        raise InvalidParameterCombination("Must specify either Statistics or ExtendedStatistics")
    if series.seconds(request["StartTime"]) >= series.seconds(request["EndTime"]):
        raise InvalidParameterValue(
            "The parameter StartTime must be less than the parameter EndTime."
        )
    key = Key(
        request["Namespace"],
        request["MetricName"],
        series.dimensions(request.get("Dimensions") or ()),
    )
    period = _checked(int(request["Period"]))
    start = series.begin(request["StartTime"], period)
    points = store.between(key, start, series.seconds(request["EndTime"]), request.get("Unit"))
    shown: dict[float, dict[str, Any]] = {}
    for name in (*basic, *extended):
        try:
            values = series.periods(points, start, period, name)
        except ValueError:
            raise InvalidParameterValue(f"The value {name} is not supported.") from None
        for at, value in values:
            datapoint = shown.setdefault(at, {"Timestamp": _moment(at), "Unit": points[0].unit})
            if name in basic:
                datapoint[name] = value
            else:
                datapoint.setdefault("ExtendedStatistics", {})[name] = value
    return {"Label": request["MetricName"], "Datapoints": list(shown.values())}


def listed(store: Store, request: Request) -> dict[str, Any]:
    """ListMetrics."""
    since = time.time() - (_RECENT if request.get("RecentlyActive") else _LISTED)
    keys = [key for key in store.all() if store.newest(key) >= since and _chosen(key, request)]
    token = str(request.get("NextToken") or "0")
    if not token.isdecimal():
        raise InvalidParameterValue("Request parameter NextToken is invalid")
    start = int(token)
    more = {"NextToken": str(start + _PAGE)} if len(keys) > start + _PAGE else {}
    return {"Metrics": [shown(key) for key in keys[start : start + _PAGE]], **more}


def _chosen(key: Key, request: Request) -> bool:
    if request.get("Namespace") not in (None, key.namespace):
        return False
    if request.get("MetricName") not in (None, key.name):
        return False
    there = dict(key.dimensions)
    return all(
        dimension["Name"] in there and dimension.get("Value") in (None, there[dimension["Name"]])
        for dimension in request.get("Dimensions") or ()
    )


def shown(key: Key) -> dict[str, Any]:
    """A series as answers have it."""
    return {
        "Namespace": key.namespace,
        "MetricName": key.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in key.dimensions],
    }


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.utc)
