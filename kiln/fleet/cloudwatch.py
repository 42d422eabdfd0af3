"""What CloudWatch has of instances: the last metric, the last event, Xids, and test events.

Asked for many instances at once: the number of calls does not follow the number of instances.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from kiln.base.times import utc_now
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.fleet.machines import in_pages
from kiln.telemetry import Telemetry
from kiln.telemetry.facts import telemetry_facts

# https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html
_QUERIES = 500
_PERIOD = 60
# Three hours in minutes for 500 instances are below the 100,800 points of an answer.
RECENT = timedelta(hours=3)


def last_metrics(
    target: Target, settings: Telemetry, ids: Sequence[str], since: datetime
) -> dict[str, datetime]:
    """The minute of the newest GPU metric of each instance since then, where there is one.

    Raises KilnError (exit status 1) if CloudWatch refuses.
    """
    client: Any = aws.cloudwatch(target)
    newest: dict[str, datetime] = {}
    for batch in in_pages(ids, _QUERIES):
        queries = [_query(settings, number, item) for number, item in enumerate(batch)]
        with aws.explained("CloudWatch could not be asked for metrics"):
            pages = client.get_paginator("get_metric_data").paginate(
                MetricDataQueries=queries,
                StartTime=since.replace(second=0, microsecond=0),
                EndTime=utc_now() + timedelta(minutes=1),
                ScanBy="TimestampDescending",
            )
            for page in pages:
                for result in page["MetricDataResults"]:
                    times = [_aware(moment) for moment in result["Timestamps"]]
                    if times:
                        instance_id = batch[int(result["Id"][1:])]
                        newest[instance_id] = max(
                            [*times, *([newest[instance_id]] if instance_id in newest else [])]
                        )
    return newest


def last_events(target: Target, group: str, ids: Iterable[str]) -> dict[str, datetime]:
    """When the newest event of each instance happened; without those that never sent one.

    Raises KilnError (exit status 1) if CloudWatch Logs refuses.
    """
    wanted = set(ids)
    last_seen: dict[str, datetime] = {}
    client: Any = aws.logs(target)
    with aws.explained(f"the streams of {group} could not be listed"):
        try:
            pages = client.get_paginator("describe_log_streams").paginate(
                logGroupName=group, logStreamNamePrefix="i-"
            )
            for page in pages:
                for stream in page["logStreams"]:
                    newest = stream.get("lastEventTimestamp")
                    if newest and stream["logStreamName"] in wanted:
                        last_seen[str(stream["logStreamName"])] = _moment(newest)
                if len(last_seen) == len(wanted):
                    break
        except client.exceptions.ResourceNotFoundException:
            return {}
    return last_seen


def xids_since(target: Target, group: str, since: datetime) -> dict[str, dict[str, int]]:
    """Instance → Xid → how often, without drills.

    Raises KilnError (exit status 1) if CloudWatch Logs refuses.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for stream, event in _events(target, group, "{ $.xid > 0 }", since):
        if event.get("injected") or not isinstance(event.get("xid"), int):
            continue
        number = event.get("count", 1)
        counts[stream][str(event["xid"])] += max(number, 1) if isinstance(number, int) else 1
    return {stream: dict(count) for stream, count in counts.items()}


def arrived_tests(target: Target, group: str, mark: str, since: datetime) -> set[str]:
    """The instances whose test event has arrived.

    Raises KilnError (exit status 1) if CloudWatch Logs refuses.
    """
    pattern = f'{{ $.process = "{mark}-*" }}'
    return {
        stream
        for stream, event in _events(target, group, pattern, since)
        # Guests of the lab share a kernel log: each event names its own instance.
        if event.get("process") == f"{mark}-{stream}"
    }


def _events(
    target: Target, group: str, pattern: str, since: datetime
) -> Iterable[tuple[str, dict[str, Any]]]:
    client: Any = aws.logs(target)
    with aws.explained(f"the events of {group} could not be read"):
        try:
            pages = client.get_paginator("filter_log_events").paginate(
                logGroupName=group, filterPattern=pattern, startTime=int(since.timestamp() * 1000)
            )
            events = [event for page in pages for event in page["events"]]
        except client.exceptions.ResourceNotFoundException:
            return
    for event in events:
        try:
            line = json.loads(event["message"])
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield str(event["logStreamName"]), line


def _query(settings: Telemetry, number: int, instance_id: str) -> dict[str, Any]:
    """The series that the agent adds up over all GPUs of an instance (`aggregate_by`)."""
    name = f"{telemetry_facts()['gpu_metrics']['prefix']}{_always_there(settings)}"
    return {
        "Id": f"m{number}",
        "MetricStat": {
            "Metric": {
                "Namespace": settings.namespace,
                "MetricName": name,
                "Dimensions": [{"Name": "InstanceId", "Value": instance_id}],
            },
            "Period": _PERIOD,
            "Stat": "SampleCount",
        },
    }


def _always_there(settings: Telemetry) -> str:
    """A measurement that each GPU has, with MIG too."""
    lost = telemetry_facts()["gpu_metrics"]["lost_with_mig"]
    return next((name for name in settings.metrics if name not in lost), "memory_total")


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
