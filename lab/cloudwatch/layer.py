"""Puts the lab's CloudWatch over moto's: seen in moto 5.2.5.

moto's metrics: a query without dimensions takes every series of the name, one with dimensions any
namespace; series with several dimensions are listed again and again; no percentiles and hardly any
metric math; periods do not begin on the minute. moto's alarms are stored and never evaluated; there
are no composite ones and no history. moto's logs: no class of a log group; metric filters are
stored and never applied; of filter patterns it knows words.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import moto.logs.models
from moto.cloudwatch.models import CloudWatchBackend, cloudwatch_backends
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.responses import ActionResult
from moto.logs.exceptions import InvalidParameterException, ResourceNotFoundException
from moto.logs.models import LogGroup, LogsBackend, LogStream
from moto.logs.responses import LogsResponse

from lab.cloudwatch import alarm_calls, emf, metric_filters, patterns, reading, watch
from lab.cloudwatch.metric_filters import MetricFilter

# The calls that do here what they do on AWS; the lab itself answers them or acts on them.
REAL = {
    "cloudwatch": (
        *("PutMetricData", "GetMetricData", "GetMetricStatistics", "ListMetrics"),
        *("PutMetricAlarm", "PutCompositeAlarm", "DeleteAlarms", "DescribeAlarms"),
        *("DescribeAlarmHistory", "DescribeAlarmsForMetric", "SetAlarmState"),
        "DescribeAlarmContributors",
        *("EnableAlarmActions", "DisableAlarmActions"),
    ),
    "logs": (
        *("CreateLogGroup", "CreateLogStream", "DeleteLogGroup", "DescribeLogGroups"),
        *("PutLogEvents", "GetLogEvents", "FilterLogEvents"),
        *("PutMetricFilter", "DescribeMetricFilters", "DeleteMetricFilter", "TestMetricFilter"),
    ),
}


def install() -> None:
    """Replace what moto answers otherwise. Call it once per process."""
    CloudWatchBackend.put_metric_data = _put
    for name, answer in (
        ("get_metric_data", reading.metric_data),
        ("get_metric_statistics", reading.statistics),
        ("list_metrics", reading.listed),
    ):
        setattr(CloudWatchResponse, name, _reads(answer))
    alarm_calls.install()
    LogsResponse.create_log_group = _with_class(LogsResponse.create_log_group)
    LogGroup.to_describe_dict = _described(LogGroup.to_describe_dict)
    LogsBackend.put_metric_filter = _put_filter
    LogsBackend.describe_metric_filters = _filters
    LogsBackend.delete_metric_filter = _delete_filter
    LogsBackend.delete_log_group = _with_its_filters(LogsBackend.delete_log_group)
    LogsResponse.put_log_events = _with_its_format(LogsResponse.put_log_events)
    LogStream.put_log_events = _counted(LogStream.put_log_events)
    LogsResponse.test_metric_filter = _test_filter
    moto.logs.models.EventMessageFilter = _EventFilter
    watch.start()


# Metrics.


def _put(backend: Any, namespace: str, metric_data: list[dict[str, Any]]) -> None:
    for number, datum in enumerate(metric_data, 1):
        backend._validate_parameters_put_metric_data(datum, number)
    watch.store_of(backend).put(namespace, metric_data)


def _reads(answer: Any) -> Any:
    def method(response: Any) -> ActionResult:
        store = watch.store_of(response.cloudwatch_backend)
        return ActionResult(answer(store, response._get_params()))

    return method


# Log groups.


def _with_class(moto: Any) -> Any:
    def create_log_group(response: Any) -> Any:
        answer = moto(response)
        group = response.logs_backend.groups[response._get_param("logGroupName")]
        group.log_group_class = response._get_param("logGroupClass") or "STANDARD"
        return answer

    return create_log_group


def _described(moto: Any) -> Any:
    def to_describe_dict(group: Any) -> dict[str, Any]:
        backend = moto_logs()[group.account_id][group.region]
        count = sum(filter_.group == group.name for filter_ in filters_of(backend).values())
        return {**moto(group), "logGroupClass": class_of(group), "metricFilterCount": count}

    return to_describe_dict


def class_of(group: Any) -> str:
    """A log group's class."""
    return str(getattr(group, "log_group_class", "STANDARD"))


def moto_logs() -> Any:
    """moto's backends of CloudWatch Logs."""
    return moto.logs.models.logs_backends


# Filters.


def filters_of(backend: Any) -> dict[tuple[str, str], MetricFilter]:
    """The metric filters of an account in a region, by group and name."""
    filters: dict[tuple[str, str], MetricFilter] = backend.__dict__.setdefault("kiln_filters", {})
    return filters


def _put_filter(
    backend: Any, name: str, pattern: str, group_name: str, transformations: list[dict[str, Any]]
) -> None:
    group = backend.groups.get(group_name)
    if group is None:
        raise ResourceNotFoundException("The specified log group does not exist.")
    if class_of(group) != "STANDARD":
        # The documentation says that the class has no metric filters; the error's name is assumed.
        raise InvalidParameterException(msg="Metric filters are not supported for this log class")
    request = {
        "filterName": name,
        "filterPattern": pattern,
        "logGroupName": group_name,
        "metricTransformations": transformations,
    }
    try:
        filters_of(backend)[group_name, name] = metric_filters.made(request)
    except ValueError as error:
        raise InvalidParameterException(msg=f"Invalid metric filter: {error}") from None


def _filters(
    backend: Any,
    prefix: str | None = None,
    group_name: str | None = None,
    metric_name: str | None = None,
    namespace: str | None = None,
) -> list[dict[str, Any]]:
    filters = [
        filter_
        for filter_ in filters_of(backend).values()
        if filter_.name.startswith(prefix or "")
        and group_name in (None, filter_.group)
        and metric_name in (None, filter_.transformation["metricName"])
        and namespace in (None, filter_.transformation["metricNamespace"])
    ]
    return [
        filter_.shown()
        for filter_ in sorted(filters, key=lambda filter_: (filter_.group, filter_.name))
    ]


def _delete_filter(backend: Any, name: str, group_name: str) -> None:
    if filters_of(backend).pop((group_name, name), None) is None:
        raise ResourceNotFoundException("The specified metric filter does not exist.")


def _with_its_filters(moto: Any) -> Any:
    def delete_log_group(backend: Any, log_group_name: str) -> None:
        moto(backend, log_group_name)
        for place in [place for place in filters_of(backend) if place[0] == log_group_name]:
            del filters_of(backend)[place]

    return delete_log_group


# Whether the PutLogEvents that is being answered named the embedded metric format.
_names_emf: ContextVar[bool] = ContextVar("names_emf", default=False)


def _with_its_format(moto: Any) -> Any:
    def put_log_events(response: Any) -> Any:
        named = _names_emf.set(response.headers.get("x-amzn-logs-format") == emf.FORMAT)
        try:
            return moto(response)
        finally:
            _names_emf.reset(named)

    return put_log_events


def _counted(moto: Any) -> Any:
    def put_log_events(stream: Any, log_events: list[dict[str, Any]]) -> str:
        token: str = moto(stream, log_events)
        backend = moto_logs()[stream.account_id][stream.region]
        metrics = cloudwatch_backends[stream.account_id][stream.region]
        for filter_ in list(filters_of(backend).values()):
            if filter_.group != stream.log_group.name:
                continue
            events = [(int(event["timestamp"]), event["message"]) for event in log_events]
            data = metric_filters.data(filter_, events)
            watch.store_of(metrics).put(filter_.transformation["metricNamespace"], data)
        if class_of(stream.log_group) == "STANDARD":
            for event in log_events:
                for namespace, datum in emf.data(event["message"], header=_names_emf.get()):
                    watch.store_of(metrics).put(namespace, [datum])
        return token

    return put_log_events


def _test_filter(response: Any) -> str:
    import json

    messages = list(response._get_param("logEventMessages") or [])
    try:
        matches = metric_filters.tested(response._get_param("filterPattern") or "", messages)
    except patterns.PatternError as error:
        raise InvalidParameterException(msg=f"Invalid filter pattern: {error}") from None
    return json.dumps({"matches": matches})


class _EventFilter:
    """In the place of moto's filter of FilterLogEvents and live tails."""

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = patterns.parse(pattern or "")
        except patterns.PatternError as error:
            raise InvalidParameterException(msg=f"Invalid filter pattern: {error}") from None

    def matches(self, message: str) -> bool:
        return self._pattern.matches(message)
