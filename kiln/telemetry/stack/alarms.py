"""The alarms. What they report to is in `topic.py`.

An alarm watches metrics with fixed dimensions or a query of Metrics Insights; it cannot search. A
query with GROUP BY judges each instance, says how many breach and not which
(`cloudwatch describe-alarm-contributors` does), and cannot miss an instance that sends nothing:
its series leaves the query. Instances that must never be silent have an alarm of their own.
"""

from __future__ import annotations

from typing import Any

from kiln.facts import instance
from kiln.telemetry.settings import Telemetry
from kiln.telemetry.stack import events
from kiln.telemetry.stack.inputs import (
    Resource,
    StackInputs,
    either,
    is_given,
    is_true,
    reference,
    stack_facts,
    substituted,
)
from kiln.telemetry.stack.network import INFRA, INSTANCES

_FACTS = stack_facts()["alarms"]
PARAMETERS: dict[str, Any] = {
    "PagingTopicArn": {
        "Type": "String",
        "Default": "",
        "Description": "topic of the composite alarm; empty: the stack's own",
    },
    "IdlePercent": {
        "Type": "Number",
        "Default": int(_FACTS["idle_percent"]),
        "MinValue": 0,
        "MaxValue": 100,
        "Description": "GPUs of an instance that are all busy below it cost money for nothing",
    },
    "IdleHours": {
        "Type": "Number",
        "Default": int(_FACTS["idle_hours"]),
        "AllowedValues": list(range(1, int(_FACTS["insights_hours"]) + 1)),
        "Description": "for how long; an alarm with a query sees no older data",
    },
    "TemperatureLimit": {
        "Type": "Number",
        "Default": int(_FACTS["temperature_celsius"]),
        "Description": "degrees Celsius, of a GPU",
    },
    "PowerLimit": {
        "Type": "Number",
        "Default": 0,
        "Description": "watts, of a GPU; 0: no alarm, as a busy GPU works at its limit",
    },
    "AlwaysOn": {
        "Type": "String",
        "AllowedValues": ["true", "false"],
        "Default": "true",
        "Description": "false if no GPU machine may be running: then missing data raises no alarm",
    },
}
CONDITIONS = {
    "HasPagingTopic": is_given("PagingTopicArn"),
    "HasPowerLimit": {"Fn::Not": [{"Fn::Equals": [reference("PowerLimit"), 0]}]},
    "IsAlwaysOn": is_true("AlwaysOn"),
}
# Five-minute periods of so many hours: CloudFormation cannot multiply.
MAPPINGS = {
    "PeriodsOfHours": {
        str(hours): {"Count": hours * 12} for hours in range(1, int(_FACTS["insights_hours"]) + 1)
    }
}
OUTPUTS = {"PagingAlarm": reference("PagingAlarm")}
_MINUTE, _FIVE = 60, 300
# Always sent, also with MIG, unlike utilization.
_ALWAYS = "nvidia_smi_memory_used"


def alarm_resources(inputs: StackInputs) -> dict[str, Resource]:
    """All alarms, by their names in the template, and the composite one that pages."""
    alarms = {**_of_events(), **_of_fleet(inputs.settings)}
    for kind in inputs.gpu_types:
        alarms |= _of_type(kind, inputs.settings)
    if ("InstanceId",) in inputs.settings.aggregate_by:
        for watched_instance in inputs.watched:
            alarms[f"Silent{watched_instance.replace('-', '')}"] = _silent(
                watched_instance, inputs.settings
            )
        for name in INSTANCES:
            own = _silent(reference(name), inputs.settings)
            alarms[f"Silent{name}"] = {**own, "Condition": INFRA}
    # A rule cannot name an alarm that a condition leaves out.
    paging = [name for name, item in alarms.items() if _pages(name) and "Condition" not in item]
    rule = " OR ".join(f'ALARM("${{{name}}}")' for name in paging)
    alarms["PagingAlarm"] = {
        "Type": "AWS::CloudWatch::CompositeAlarm",
        "Properties": {
            "AlarmName": substituted("${AWS::StackName}-paging"),
            "AlarmDescription": "A GPU needs somebody now: look at which alarm it names",
            "AlarmRule": substituted(rule),
            "AlarmActions": [
                either("HasPagingTopic", reference("PagingTopicArn"), reference("Topic"))
            ],
        },
    }
    return alarms


def alarms_without_data(settings: Telemetry) -> list[str]:
    """What to tell who deploys the stack: alarms that see nothing of images with these settings."""
    wanted = {"hot": "temperature_gpu", "power": "power_draw", "idle": "utilization_gpu"}
    missing = {
        alarm: metric
        for alarm, metric in wanted.items()
        if metric not in settings.metrics and not (alarm == "hot" and settings.dcgm)
    }
    return [
        f"alarm {alarm} sees nothing of images with these settings, which do not send {metric}: "
        "add it to extra_metrics of `telemetry`"
        for alarm, metric in missing.items()
    ]


_PAGING = ("FatalXid", "GpuLost", "RowRemapFailure", "RowRemapFailureOfDcgm")


def _pages(name: str) -> bool:
    return name in _PAGING or name.startswith(("GpuSilent", "Silent"))


def _of_events() -> dict[str, Resource]:
    """On what metric filters count: no dimensions, so each is one metric of the account."""
    namespace = stack_facts()["events"]["namespace"]

    def more_than_none(text: str, suffix: str, metric: str) -> Resource:
        return _alarm(
            suffix,
            text,
            {"Namespace": namespace, "MetricName": metric, "Statistic": "Sum", "Period": _MINUTE},
            over=0,
            periods=1,
        )

    return {
        "FatalXid": more_than_none(
            "A fatal Xid, SXid or health finding; the dashboard's table says which and what to do",
            "fatal-xid",
            events.FATAL,
        ),
        "GpuLost": more_than_none(
            "A GPU has fallen off the bus: replace the instance", "gpu-lost", events.LOST
        ),
        "RowRemapFailure": more_than_none(
            "GPU memory has no spare row left: replace the instance",
            "row-remap-failure",
            events.REMAP,
        ),
        "EventsDropped": more_than_none(
            "An event monitor lost events: a full disk, or a kernel log that overran",
            "events-dropped",
            events.DROPPED,
        ),
    }


def _of_fleet(settings: Telemetry) -> dict[str, Resource]:
    """On queries over whatever machines report."""

    def each(function: str, metric: str, order: str = "DESC") -> dict[str, Any]:
        return _query(settings, function, metric, order=order)

    idle_for = {"Fn::FindInMap": ["PeriodsOfHours", reference("IdleHours"), "Count"]}
    return {
        "Idle": _alarm(
            "idle",
            "All GPUs of an instance are hardly used: it costs money for nothing",
            each("MAX", "nvidia_smi_utilization_gpu", "ASC"),
            under=reference("IdlePercent"),
            periods=idle_for,
        ),
        "Hot": _alarm(
            "hot",
            "A GPU is near the temperature at which it slows down",
            each("MAX", "nvidia_smi_temperature_gpu"),
            over=reference("TemperatureLimit"),
            periods=3,
        ),
        "HotByDcgm": _alarm(
            "hot-dcgm",
            "A GPU is near the temperature at which it slows down, as DCGM has it",
            each("MAX", "DCGM_FI_DEV_GPU_TEMP"),
            over=reference("TemperatureLimit"),
            periods=3,
        ),
        "Power": {
            **_alarm(
                "power",
                "A GPU draws more than the limit that was set",
                each("MAX", "nvidia_smi_power_draw"),
                over=reference("PowerLimit"),
                periods=3,
            ),
            "Condition": "HasPowerLimit",
        },
        "RowRemapFailureOfDcgm": _alarm(
            "row-remap-failure-dcgm",
            "GPU memory has no spare row left, as DCGM has it: replace the instance",
            each("MAX", "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
            over=0,
            periods=1,
        ),
        "AllSilent": {
            **_alarm(
                "all-silent",
                "No GPU of the account reports anything",
                _query(settings, "COUNT", _ALWAYS),
                under=1,
                periods=3,
                missing="breaching",
            ),
            "Condition": "IsAlwaysOn",
        },
    }


def _of_type(kind: str, settings: Telemetry) -> dict[str, Resource]:
    """A GPU of an instance of this type that stopped reporting, while the others go on.

    Samples are counted, as a type has a known number of GPUs. Not where the series do not tell
    their type, or where a GPU's are not sent.
    """
    gpus = instance(kind).gpu_count
    summed_up = any("InstanceType" in names for names in settings.aggregate_by)
    if gpus < 2 or settings.drop_original or summed_up or "InstanceType" not in settings.dimensions:
        return {}
    each = _FIVE // settings.interval
    if each < 1:
        return {}
    name = "GpuSilent" + "".join(part.capitalize() for part in kind.replace("-", ".").split("."))
    alarm = _alarm(
        f"gpu-silent-{kind}",
        f"A GPU of a {kind} stopped reporting: fewer samples than of {gpus} GPUs",
        _query(settings, "COUNT", _ALWAYS, where=f"InstanceType = '{kind}'", order="ASC"),
        # One GPU of all is missing; a sample may come a little late.
        under=gpus * each - max(each - 1, 0),
        periods=3,
    )
    return {name: alarm}


def _silent(watched: Any, settings: Telemetry) -> Resource:
    """An instance that must report: missing data breach."""
    text = watched if isinstance(watched, str) else f"${{{watched['Ref']}}}"
    return _alarm(
        f"silent-{text}",
        f"The GPUs of {text} report nothing",
        {
            "Namespace": settings.namespace,
            "MetricName": _ALWAYS,
            "Dimensions": [{"Name": "InstanceId", "Value": watched}],
            "Statistic": "SampleCount",
            "Period": _FIVE,
        },
        under=1,
        periods=2,
        missing="breaching",
    )


def _query(
    settings: Telemetry, function: str, metric: str, *, where: str = "", order: str = ""
) -> dict[str, Any]:
    """Of Metrics Insights; with an `order` a series per instance, otherwise one of all."""
    words = ["SELECT", f"{function}({metric})", "FROM", f'"{settings.namespace}"']
    words += ["WHERE", where] if where else []
    words += ["GROUP BY InstanceId ORDER BY", f"{function}()", order] if order else []
    query = {"Id": "query", "Expression": " ".join(words), "Period": _FIVE, "ReturnData": True}
    return {"Metrics": [query]}


def _alarm(
    suffix: str,
    text: str,
    of: dict[str, Any],
    *,
    over: Any = None,
    under: Any = None,
    periods: Any,
    missing: str = "notBreaching",
) -> Resource:
    operator = "LessThanThreshold" if over is None else "GreaterThanThreshold"
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": substituted(f"${{AWS::StackName}}-{suffix}"),
            "AlarmDescription": substituted(text) if "${" in text else text,
            **of,
            "ComparisonOperator": operator,
            "Threshold": under if over is None else over,
            "EvaluationPeriods": periods,
            "TreatMissingData": missing,
            "AlarmActions": [reference("Topic")],
            "OKActions": [reference("Topic")],
        },
    }
