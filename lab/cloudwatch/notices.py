"""What an alarm tells its SNS topics, and how it words why.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-and-eventbridge.html has
the reasons and their data. No page of AWS has the message: its fields are those of messages that
users pasted, such as one of an alarm that a log event raised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import botocore.session

_WORDS = {
    "GreaterThanOrEqualToThreshold": "greater than or equal to",
    "GreaterThanThreshold": "greater than",
    "LessThanThreshold": "less than",
    "LessThanOrEqualToThreshold": "less than or equal to",
}


def message(alarm: Any, account: str, old: str) -> tuple[str, str]:
    """Subject and body of the notification of a change from state `old`."""
    region = region_name(alarm.region_name)
    body = {
        "AlarmName": alarm.name,
        "AlarmDescription": alarm.description,
        "AWSAccountId": account,
        "AlarmConfigurationUpdatedTimestamp": stamp(alarm.configuration_updated_timestamp),
        "NewStateValue": alarm.state_value,
        "NewStateReason": alarm.state_reason,
        "StateChangeTime": stamp(alarm.state_updated_timestamp),
        "Region": region,
        "AlarmArn": alarm.alarm_arn,
        "OldStateValue": old,
        "OKActions": alarm.ok_actions,
        "AlarmActions": alarm.alarm_actions,
        "InsufficientDataActions": alarm.insufficient_data_actions,
    }
    body |= {"AlarmRule": alarm.rule} if alarm.rule else {"Trigger": _trigger(alarm)}
    return f'{alarm.state_value}: "{alarm.name}" in {region}'[:100], json.dumps(body)


def _trigger(alarm: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "Period": alarm.period,
        "EvaluationPeriods": alarm.evaluation_periods,
        **({"DatapointsToAlarm": alarm.datapoints_to_alarm} if alarm.datapoints_to_alarm else {}),
        "ComparisonOperator": alarm.comparison_operator,
        "Threshold": alarm.threshold,
        "TreatMissingData": alarm.treat_missing_data or "missing",
        "EvaluateLowSampleCountPercentile": alarm.evaluate_low_sample_count_percentile or "",
    }
    if alarm.metric_name:
        dimensions = [
            {"value": dimension.value, "name": dimension.name} for dimension in alarm.dimensions
        ]
        shown |= {
            "MetricName": alarm.metric_name,
            "Namespace": alarm.namespace,
            "StatisticType": "ExtendedStatistic" if alarm.extended_statistic else "Statistic",
            "Statistic": alarm.extended_statistic or _screaming(alarm.statistic),
            "Unit": alarm.unit,
            "Dimensions": dimensions,
        }
    return shown


def _screaming(name: str) -> str:
    return {"SampleCount": "SAMPLE_COUNT"}.get(name, name.upper())


def reason(alarm: Any, new: str, values: Sequence[tuple[float, float]], to_alarm: int) -> str:
    """Why the state is `new`; `values` are those that were judged: (time, value)."""
    if not values:
        return "Unchecked: no datapoints were received"
    shown = ", ".join(f"{value} ({_day(at)})" for at, value in values)
    several, are = ("s", "were") if len(values) > 1 else ("", "was")
    breach = "" if new == "ALARM" else "not "
    crossed = f"{are} {breach}{_WORDS[alarm.comparison_operator]} the threshold ({alarm.threshold})"
    if not alarm.datapoints_to_alarm:
        return f"Threshold Crossed: {len(values)} datapoint{several} [{shown}] {crossed}."
    return (
        f"Threshold Crossed: {len(values)} out of the last {alarm.evaluation_periods} datapoints "
        f"[{shown}] {crossed} (minimum {to_alarm} datapoint{'s'[: to_alarm > 1]} for "
        f"{alarm.state_value} -> {new} transition)."
    )


def reason_data(alarm: Any, values: Sequence[tuple[float, float]], now: float) -> str:
    """The same for programs."""
    return json.dumps(
        {
            "version": "1.0",
            "queryDate": stamp(datetime.fromtimestamp(now, timezone.utc)),
            "statistic": alarm.statistic or alarm.extended_statistic,
            "period": alarm.period,
            "recentDatapoints": [value for _, value in values],
            "threshold": alarm.threshold,
            "evaluatedDatapoints": [
                {"timestamp": stamp(datetime.fromtimestamp(at, timezone.utc)), "value": value}
                for at, value in values
            ],
        }
    )


def stamp(moment: datetime) -> str:
    """A time as notifications have it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}+0000"


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%d/%m/%y %H:%M:%S}"


@lru_cache(maxsize=64)
def region_name(region: str) -> str:
    """US East (N. Virginia) for us-east-1."""
    partitions = botocore.session.get_session().get_data("endpoints")["partitions"]
    for partition in partitions:
        if region in partition["regions"]:
            return str(partition["regions"][region]["description"])
    return region
