"""The calls about alarms that the lab answers otherwise than moto."""

from __future__ import annotations

import re
from typing import Any

from moto.cloudwatch.exceptions import (
    CloudWatchException,
    ResourceNotFoundException,
    ValidationError,
)
from moto.cloudwatch.models import Alarm, CloudWatchBackend
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.responses import ActionResult, EmptyResult

from lab.cloudwatch import alarms, composite, contributors, metrics_insights, watch

_MISSING = ("missing", "ignore", "breaching", "notBreaching")
_PAGE = 50


class InvalidNextToken(CloudWatchException):  # type: ignore[misc]
    """A token that no page has given."""

    code = "InvalidNextToken"


def install() -> None:
    """Put them over moto's."""
    CloudWatchBackend.put_metric_alarm = _keeps_state(CloudWatchBackend.put_metric_alarm)
    CloudWatchBackend.set_alarm_state = _acts(CloudWatchBackend.set_alarm_state)
    for chosen in ("action_prefix", "alarm_name_prefix", "alarm_names", "state_value"):
        name = f"get_alarms_by_{chosen}"
        setattr(CloudWatchBackend, name, _listed(getattr(CloudWatchBackend, name)))
    CloudWatchResponse.put_metric_alarm = _checked(CloudWatchResponse.put_metric_alarm)
    CloudWatchResponse.put_composite_alarm = _put_composite
    CloudWatchResponse.describe_alarms = _paged(CloudWatchResponse.describe_alarms)
    CloudWatchResponse.describe_alarm_history = _history
    CloudWatchResponse.describe_alarm_contributors = _contributors


def _listed(moto: Any) -> Any:
    """moto gives an iterator, of which its metric alarms leave nothing for the composite ones."""

    def alarms_by(backend: Any, value: Any) -> list[Any]:
        return list(moto(backend, value))

    return alarms_by


def _checked(moto: Any) -> Any:
    def put_metric_alarm(response: Any) -> Any:
        request = response._get_params()
        operator = request.get("ComparisonOperator")
        if not alarms.is_operator(str(operator)):
            raise ValidationError(f"AMI Kiln lab: {operator} is not implemented")
        if request.get("TreatMissingData", "missing") not in _MISSING:
            raise ValidationError(
                f"Option {request['TreatMissingData']} is not supported. Supported options for "
                "parameter TreatMissingData are [breaching, notBreaching, ignore, missing]"
            )
        period, periods = request.get("Period"), int(request["EvaluationPeriods"])
        if request.get("MetricName") and period not in (10, 20, 30) and (not period or period % 60):
            raise ValidationError("Period must be 10, 20, 30 or a multiple of 60")
        if int(request.get("DatapointsToAlarm") or 1) > periods:
            raise ValidationError(
                "DatapointsToAlarm must be less than or equal to EvaluationPeriods"
            )
        if request.get("MetricName") and not (
            request.get("Statistic") or request.get("ExtendedStatistic")
        ):
            raise ValidationError("Exactly one of Statistic and ExtendedStatistic must be given")
        for query in request.get("Metrics") or ():
            _check_expression(str(query.get("Expression") or ""))
        return moto(response)

    return put_metric_alarm


def _check_expression(text: str) -> None:
    """An alarm takes metric math or a query, and no search.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/using-search-expressions.html
    """
    if "SEARCH(" in text.replace(" ", ""):
        raise ValidationError("SEARCH is not supported on Metric Alarms.")
    if metrics_insights.is_insight(text):
        try:
            metrics_insights.parse(text)
        except metrics_insights.InsightsError as error:
            raise ValidationError(f"Error in expression: {error}") from None


def _keeps_state(moto: Any) -> Any:
    """A changed alarm keeps its state, a new one has none yet."""

    def put_metric_alarm(backend: Any, name: str, *args: Any, **named: Any) -> Alarm:
        before = backend.alarms.get(name)
        alarm: Alarm = moto(backend, name, *args, **named)
        alarm.state_value = before.state_value if before else alarms.INSUFFICIENT
        if before:
            alarm.state_reason, alarm.state_reason_data = (
                before.state_reason,
                before.state_reason_data,
            )
            alarm.state_updated_timestamp = before.state_updated_timestamp
        summary = f'Alarm "{name}" {"updated" if before else "created"}'
        watch.remember(backend, alarm, "ConfigurationUpdate", summary)
        return alarm

    return put_metric_alarm


def _acts(moto: Any) -> Any:
    def set_alarm_state(backend: Any, alarm_name: str, *args: Any, **named: Any) -> None:
        alarm = backend.alarms.get(alarm_name)
        old = alarm.state_value if alarm else ""
        moto(backend, alarm_name, *args, **named)
        if alarm.state_value != old:
            watch.changed(backend, alarm, old)

    return set_alarm_state


def _put_composite(response: Any) -> EmptyResult:
    request, backend = response._get_params(), response.cloudwatch_backend
    try:
        _, named = composite.parse(request["AlarmRule"])
    except composite.RuleError as error:
        raise ValidationError(f"Invalid AlarmRule: {error}") from None
    missing = [name for name in named if name not in backend.alarms]
    if missing:
        raise ValidationError(f"Error in AlarmRule: {missing[0]} does not exist")
    backend.put_metric_alarm(
        name=request["AlarmName"],
        namespace=None,
        metric_name=None,
        comparison_operator=None,
        evaluation_periods=1,
        period=None,
        threshold=None,
        statistic=None,
        description=request.get("AlarmDescription"),
        dimensions=[],
        alarm_actions=request.get("AlarmActions", []),
        ok_actions=request.get("OKActions", []),
        insufficient_data_actions=request.get("InsufficientDataActions", []),
        actions_enabled=request.get("ActionsEnabled", True),
        rule=request["AlarmRule"],
        tags=request.get("Tags", []),
    ).alarm_rule = request["AlarmRule"]
    return EmptyResult()


def _paged(moto: Any) -> Any:
    """Without AlarmTypes only metric alarms are shown."""

    def describe_alarms(response: Any) -> ActionResult:
        request = response._get_params()
        kinds = request.get("AlarmTypes") or ["MetricAlarm"]
        whole = moto(response).result
        chosen = [
            (name, alarm)
            for name in ("MetricAlarms", "CompositeAlarms")
            for alarm in whole[name]
            if name.rstrip("s") in kinds
        ]
        token = str(request.get("NextToken") or "0")
        if not re.fullmatch("[0-9]{1,9}", token):
            raise InvalidNextToken("The given token is not valid")
        start = int(token)
        end = start + int(request.get("MaxRecords") or _PAGE)
        shown: dict[str, Any] = {"MetricAlarms": [], "CompositeAlarms": []}
        for name, alarm in chosen[start:end]:
            shown[name].append(alarm)
        return ActionResult(shown | ({"NextToken": str(end)} if end < len(chosen) else {}))

    return describe_alarms


def _contributors(response: Any) -> ActionResult:
    name = response._get_params()["AlarmName"]
    alarm = response.cloudwatch_backend.alarms.get(name)
    if alarm is None:
        raise ResourceNotFoundException
    return ActionResult({"AlarmContributors": contributors.shown(alarm)})


def _history(response: Any) -> ActionResult:
    request = response._get_params()
    entries = [
        entry
        for entry in watch.history_of(response.cloudwatch_backend)
        if request.get("AlarmName") in (None, entry["AlarmName"])
        and request.get("HistoryItemType") in (None, entry["HistoryItemType"])
    ]
    if request.get("ScanBy") != "TimestampAscending":
        entries.reverse()
    return ActionResult({"AlarmHistoryItems": entries[: int(request.get("MaxRecords") or 100)]})
