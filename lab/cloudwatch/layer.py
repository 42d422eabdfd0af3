"""Puts the lab's CloudWatch over moto's: seen in moto 5.2.5.

moto's metrics: a query without dimensions takes every series of the name, one with dimensions any
namespace; series with several dimensions are listed again and again; no percentiles; periods do not
begin on the minute. moto's logs: no class of a log group.
"""

from __future__ import annotations

from typing import Any

from moto.cloudwatch.models import CloudWatchBackend
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.responses import ActionResult
from moto.logs.models import LogGroup, LogsBackend
from moto.logs.responses import LogsResponse

from lab.cloudwatch import reading
from lab.cloudwatch.series import Store


def store_of(backend: Any) -> Store:
    """The series of an account in a region; they end with moto's backend."""
    found: Store = backend.__dict__.setdefault("kiln_series", Store())
    return found


def install() -> None:
    """Replace what moto answers otherwise. Call it once per process."""
    CloudWatchBackend.put_metric_data = _put
    for name, answer in (
        ("get_metric_data", reading.metric_data),
        ("get_metric_statistics", reading.statistics),
        ("list_metrics", reading.listed),
    ):
        setattr(CloudWatchResponse, name, _reads(answer))
    LogsResponse.create_log_group = _with_class(LogsResponse.create_log_group)
    LogGroup.to_describe_dict = _shows_class(LogGroup.to_describe_dict)


def _put(backend: Any, namespace: str, metric_data: list[dict[str, Any]]) -> None:
    for number, datum in enumerate(metric_data, 1):
        backend._validate_parameters_put_metric_data(datum, number)
    store_of(backend).put(namespace, metric_data)


def _reads(answer: Any) -> Any:
    def method(response: Any) -> ActionResult:
        store = store_of(response.cloudwatch_backend)
        return ActionResult(answer(store, response._get_params()))

    return method


def _with_class(moto: Any) -> Any:
    def create_log_group(response: Any) -> Any:
        answer = moto(response)
        backend: LogsBackend = response.logs_backend
        group = backend.groups[response._get_param("logGroupName")]
        group.log_group_class = response._get_param("logGroupClass") or "STANDARD"
        return answer

    return create_log_group


def _shows_class(moto: Any) -> Any:
    def to_describe_dict(group: Any) -> dict[str, Any]:
        shown = getattr(group, "log_group_class", "STANDARD")
        return {**moto(group), "logGroupClass": shown}

    return to_describe_dict
