"""Log groups, and the metrics that metric filters make of the event log."""

from __future__ import annotations

from typing import Any

from kiln.base.errors import KilnError
from kiln.telemetry.facts import telemetry_facts
from kiln.telemetry.settings import Telemetry
from kiln.telemetry.stack.inputs import (
    Resource,
    either,
    is_given,
    is_true,
    reference,
    stack_facts,
)
from kiln.telemetry.stack.role import log_groups

_YES_OR_NO = ["true", "false"]
PARAMETERS = {
    "CreateEventLogGroup": {
        "Type": "String",
        "AllowedValues": _YES_OR_NO,
        "Default": "true",
        "Description": "false where an agent has created the event log's group already",
    },
    "CreateDcgmLogGroup": {
        "Type": "String",
        "AllowedValues": _YES_OR_NO,
        "Default": "true",
        "Description": "false where an agent has created DCGM's group already",
    },
    "LogsKeyArn": {
        "Type": "String",
        "Default": "",
        "Description": "ARN of the KMS key of the log groups; empty for none",
    },
}
CONDITIONS = {
    "CreatesEventLog": is_true("CreateEventLogGroup"),
    "CreatesDcgmLog": is_true("CreateDcgmLogGroup"),
    "HasLogsKey": is_given("LogsKeyArn"),
}
# The metrics: without dimensions for alarms, with them for the dashboard.
FATAL, LOST, REMAP, DROPPED = "FatalEvents", "LostGpus", "RowRemapFailures", "DroppedEvents"
BY_SEVERITY, BY_XID, BY_SXID = "EventsBySeverity", "EventsByXid", "EventsBySxid"
# Which events count, in CloudWatch's filter patterns; gpu-xid writes the lines.
_PLAIN = {
    FATAL: '$.severity = "fatal"',
    LOST: '($.xid = 79) || ($.event = "gpu-lost")',
    REMAP: '($.xid = 64) || ($.name = "Row remapping failure")',
    DROPPED: '($.event = "dropped") || ($.event = "overrun")',
}
# Metric → which events, and the dimension that tells them apart.
_BY = {
    BY_SEVERITY: ("$.severity = *", "Severity", "$.severity"),
    BY_XID: ("$.xid > 0", "Xid", "$.xid"),
    BY_SXID: ("$.sxid > 0", "SXid", "$.sxid"),
}
_MACHINE = {"ImageId": "$.image_id", "InstanceType": "$.instance_type"}


def event_log_resources(settings: Telemetry) -> dict[str, Resource]:
    """Both log groups, and the filters of the event log.

    Raises KilnError (exit status 2) for a log class without metric filters.
    """
    wanted = telemetry_facts()["logs"]["class_with_metric_filters"]
    if settings.log_class != wanted:
        raise KilnError(
            f"telemetry: log_class {settings.log_class} has no metric filters, which the stack's "
            "alarms need",
            hint=f"set log_class: {wanted}",
        )
    events, dcgm = log_groups(settings)
    return {
        "EventLog": _group(settings, events, "CreatesEventLog"),
        "DcgmLog": _group(settings, dcgm, "CreatesDcgmLog"),
        **_filters(settings.log_group),
    }


def _group(settings: Telemetry, name: str, condition: str) -> Resource:
    kept = {"RetentionInDays": settings.retention_days} if settings.retention_days > 0 else {}
    return {
        "Type": "AWS::Logs::LogGroup",
        "Condition": condition,
        # What a machine reported outlives the stack; `stack.delete --with-logs` removes it.
        "DeletionPolicy": "RetainExceptOnCreate",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "LogGroupName": name,
            "LogGroupClass": settings.log_class,
            **kept,
            "KmsKeyId": either("HasLogsKey", reference("LogsKeyArn")),
        },
    }


def _filters(group: str) -> dict[str, Resource]:
    filters: dict[str, Resource] = {}
    for name, pattern in _PLAIN.items():
        filters |= _pair(group, name, pattern, {})
    for name, (pattern, dimension, value) in _BY.items():
        filters |= _pair(group, name, pattern, {dimension: value, **_MACHINE})
    return filters


def _pair(group: str, metric: str, pattern: str, dimensions: dict[str, str]) -> dict[str, Resource]:
    """Two filters of a metric: of single events, and of a folded storm, which says how many."""
    single = f"{{ ({pattern}) && ($.count NOT EXISTS) }}"
    folded = f"{{ ({pattern}) && ($.count > 0) }}"
    return {
        f"{metric}Filter": _filter(group, metric, single, "1", dimensions),
        f"{metric}FoldedFilter": _filter(group, metric, folded, "$.count", dimensions),
    }


def _filter(
    group: str, metric: str, pattern: str, value: str, dimensions: dict[str, str]
) -> Resource:
    transformation: dict[str, Any] = {
        "MetricNamespace": stack_facts()["events"]["namespace"],
        "MetricName": metric,
        "MetricValue": value,
        "Unit": "Count",
    }
    if dimensions:
        transformation["Dimensions"] = [
            {"Key": key, "Value": field} for key, field in dimensions.items()
        ]
    return {
        "Type": "AWS::Logs::MetricFilter",
        "Properties": {
            "LogGroupName": either("CreatesEventLog", reference("EventLog"), group),
            "FilterPattern": pattern,
            "MetricTransformations": [transformation],
        },
    }
