"""What CloudWatch has of instances: the last metric, the last event, Xids, and test events.

Asked for many instances at once: the number of calls does not follow the number of instances.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from kiln.base.vocabulary import utc_now
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.fleet.machines import in_pages
from kiln.telemetry import Telemetry
from kiln.telemetry.settings import telemetry_facts

# https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html
_QUERIES = 500
# Three hours in minutes for 500 instances are below the 100,800 points of an answer.
RECENT = timedelta(hours=3)


def last_metrics(
    target: Target, settings: Telemetry, ids: Sequence[str], since: datetime
) -> dict[str, datetime]:
    """The minute of the newest GPU metric of each instance since then, where there is one."""
    facts = telemetry_facts()["gpu_metrics"]
    # One that each GPU has, with MIG too; the agent sums it up by instance (`aggregate_by`).
    always = [name for name in settings.metrics if name not in facts["lost_with_mig"]]
    metric = {
        "Namespace": settings.namespace,
        "MetricName": f"{facts['prefix']}{(always or ['memory_total'])[0]}",
    }
    client: Any = aws.cloudwatch(target)
    newest: dict[str, datetime] = {}
    for batch in in_pages(ids, _QUERIES):
        queries = []
        for number, key in enumerate(batch):
            of_it = {**metric, "Dimensions": [{"Name": "InstanceId", "Value": key}]}
            stat = {"Metric": of_it, "Period": 60, "Stat": "SampleCount"}
            queries.append({"Id": f"m{number}", "MetricStat": stat})
        with aws.explained("CloudWatch could not be asked for metrics"):
            pages = client.get_paginator("get_metric_data").paginate(
                MetricDataQueries=queries,
                StartTime=since.replace(second=0, microsecond=0),
                EndTime=utc_now() + timedelta(minutes=1),
                ScanBy="TimestampDescending",
            )
            for result in (entry for page in pages for entry in page["MetricDataResults"]):
                key = batch[int(result["Id"][1:])]
                times = [*result["Timestamps"], *([newest[key]] if key in newest else [])]
                if times:
                    newest[key] = max(times)
    return newest


def last_events(target: Target, group: str, ids: Iterable[str]) -> dict[str, datetime]:
    """The time of the newest event of each instance; without those that never sent one."""
    wanted = set(ids)
    found: dict[str, datetime] = {}
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
                        moment = datetime.fromtimestamp(newest / 1000, timezone.utc)
                        found[stream["logStreamName"]] = moment
                # Streams of instances that are gone follow, for as long as events are kept.
                if len(found) == len(wanted):
                    break
        except client.exceptions.ResourceNotFoundException:
            return {}
    return found


def xids_since(target: Target, group: str, since: datetime) -> dict[str, dict[str, int]]:
    """Instance → Xid → how often, without drills."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for stream, event in _events(target, group, "{ $.xid > 0 }", since):
        if event.get("injected") or not isinstance(event.get("xid"), int):
            continue
        number = event.get("count", 1)
        counts[stream][str(event["xid"])] += max(number, 1) if isinstance(number, int) else 1
    return {stream: dict(count) for stream, count in counts.items()}


def arrived_tests(target: Target, group: str, mark: str, since: datetime) -> set[str]:
    """The instances whose test event has arrived."""
    pattern = f'{{ $.process = "{mark}-*" }}'
    return {
        stream
        for stream, event in _events(target, group, pattern, since)
        # Guests of the lab share a kernel log: each event names its own instance.
        if event.get("process") == f"{mark}-{stream}"
    }


def _events(
    target: Target, group: str, pattern: str, since: datetime
) -> Iterator[tuple[str, dict[str, Any]]]:
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
