"""`fleet.status`: what each instance reports, and what is missing where it does not."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from pydantic import BaseModel

from kiln.base.versions import below
from kiln.base.vocabulary import as_time, utc_now
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.facts.instance_types import instances as gpu_types
from kiln.fleet.document import machine_script
from kiln.fleet.machines import (
    CommandAnswer,
    FleetMachine,
    Say,
    in_pages,
    managed_machines,
    run_command,
)
from kiln.telemetry.settings import Telemetry, telemetry_facts

# What telemetry cannot be installed without.
STOPS = ("not running", "no GPU", "no role", "no SSM", "no driver", "old agent")
_SHELL = {"DocumentName": "AWS-RunShellScript"}
# Seconds that a machine has to say what is on it.
_PATIENCE = 60.0
# A series is fresh as long as it is not older than this many intervals, and than so many minutes.
_INTERVALS, _FRESH = 3, timedelta(minutes=10)
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html
_QUERIES = 500
# Three hours in minutes for 500 instances are below the 100,800 points of an answer.
_RECENT = timedelta(hours=3)


class MachineState(BaseModel, frozen=True):
    """The state that `look` of machine.sh prints: versions and hashes, names with commas, or `yes`.

    `files` are the agent's that are not ours; `unconfirmed`: an installation began there, and
    nobody has seen its reports in CloudWatch.
    """

    driver: str = ""
    agent: str = ""
    bundle: str = ""
    image: str = ""
    bundle_by_hand: str = ""
    unconfirmed: str = ""
    agent_package: str = ""
    files: str = ""

    @property
    def configuration(self) -> str:
        """The origin of the agent's configuration."""
        parts = []
        if self.bundle:
            parts.append(f"fleet.install {self.bundle[:12]}")
        elif self.bundle_by_hand:
            parts.append("telemetry.bundle")
        elif self.image:
            parts.append("AMI Kiln's image")
        files = filter(None, self.files.split(","))
        parts += [re.sub("^ssm_", "Parameter Store ", name) for name in files]
        return " + ".join(parts) or ("none" if self.agent else "")


@dataclass(frozen=True)
class FleetStatus:
    """An instance and its reports. `state` is None where it did not answer; `xids` are those of the
    last day, Xid → how often; `missing` is what it lacks → why."""

    machine: FleetMachine
    state: MachineState | None = None
    last_metric: datetime | None = None
    last_event: datetime | None = None
    xids: Mapping[str, int] = field(default_factory=dict)
    reports: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def lacks(self) -> list[str]:
        """The missing parts, in words."""
        return [f"{what}: {why}" for what, why in self.missing.items()]

    def to_dict(self) -> dict[str, Any]:
        """The entry of `fleet.status --json`."""
        state = self.state or MachineState()
        return {
            **asdict(self.machine),
            "driver": state.driver,
            "agent_version": state.agent,
            "configuration": state.configuration,
            "last_metric": as_time(self.last_metric) if self.last_metric else None,
            "last_event": as_time(self.last_event) if self.last_event else None,
            "xids": dict(self.xids),
            "reports": self.reports,
            "missing": self.lacks,
        }


def fleet_status(
    target: Target,
    machines: Sequence[FleetMachine],
    settings: Telemetry,
    say: Say,
) -> list[FleetStatus]:
    """Return the state of these instances, in their order. Those that Systems Manager reaches are
    asked what is on them; nothing is changed."""
    if not machines:
        return []
    now = utc_now()
    ids = [machine.instance_id for machine in machines]
    managed = managed_machines(target, ids)
    answers = ask_machines(target, online(machines, managed), say)
    metrics = last_metrics(target, settings, ids, now - _RECENT)
    events = _last_events(target, settings.log_group, ids)
    xids = _xids_since(target, settings.log_group, now - timedelta(days=1))
    # Settings of events alone send no metric.
    fresh = max(_INTERVALS * timedelta(seconds=settings.interval), _FRESH)
    result = []
    for machine in machines:
        key = machine.instance_id
        answer, metric, info = answers.get(key), metrics.get(key), managed.get(key, {})
        state = read_state(answer.output) if answer and answer.ok else None
        missing = _missing_on(machine, info, answer, state)
        if settings.metrics and not (metric and now - metric < fresh):
            since = f"since {metric:%H:%M} UTC" if metric else f"in {_RECENT.seconds // 3600} hours"
            missing["no metrics"] = f"none {since}"
        if key not in events:
            missing["no events"] = "its stream is not there"
        if not machine.runs:
            missing = {"not running": f"it is {machine.state}"}
        result.append(
            FleetStatus(
                machine,
                state=state,
                last_metric=metric,
                last_event=events.get(key),
                xids=xids.get(key, {}),
                reports=missing.keys().isdisjoint(("not running", "no metrics", "no events")),
                missing=missing,
            )
        )
    return result


def _missing_on(
    machine: FleetMachine,
    info: Mapping[str, str],
    answer: CommandAnswer | None,
    state: MachineState | None,
) -> dict[str, str]:
    """Return why an instance can neither report nor be reached, and what one that answers lacks."""
    missing = {}
    gpu, oldest = machine.instance_type in gpu_types(), telemetry_facts()["agent"]["since"]
    if not gpu:
        missing["no GPU"] = f"{machine.instance_type} is not a type with NVIDIA GPUs"
    if not machine.role:
        missing["no role"] = "the instance has no instance profile, so it may report nothing"
    if not info:
        role = f"{machine.role} lacks AmazonSSMManagedInstanceCore" if machine.role else "no role"
        missing["no SSM"] = f"it never registered ({role}, no agent, or no way to the service)"
    elif info["PingStatus"] != "Online":
        missing["no SSM"] = f"its agent is {info['PingStatus']}"
    elif answer and not answer.ok:
        missing["no SSM"] = answer.why
    if not state:
        return missing
    if gpu and not state.driver:
        missing["no driver"] = "nvidia-smi does not answer"
    if not state.agent:
        missing["no agent"] = "the CloudWatch agent is not installed"
    elif below(state.agent, oldest["nvidia_gpu"]):
        why = f"{state.agent} does not know GPU metrics, which need {oldest['nvidia_gpu']}"
        missing["old agent"] = why
    elif state.configuration == "none":
        missing["no configuration"] = "the agent has none"
    return missing


def online(machines: Sequence[FleetMachine], managed: Mapping[str, Any]) -> list[str]:
    """Return the ids of the instances that run and that Systems Manager reaches."""
    return [
        machine.instance_id
        for machine in machines
        if machine.runs and managed.get(machine.instance_id, {}).get("PingStatus") == "Online"
    ]


def ask_machines(target: Target, ids: Sequence[str], say: Say) -> dict[str, CommandAnswer]:
    """Return the answer of each instance on what is on it."""
    lines = ["bash -s -- look <<'AMI_KILN_MACHINE'", *machine_script().splitlines()]
    batches = [(ids, {"commands": [*lines, "AMI_KILN_MACHINE"]})]
    return run_command(target, _SHELL, batches, patience=_PATIENCE, say=say)


def read_state(output: str) -> MachineState:
    """Return the state in what a machine printed."""
    printed = dict(line.partition("=")[::2] for line in output.splitlines() if "=" in line)
    return MachineState.model_validate(printed)


STATUS_COLUMNS = (
    *("instance", "type", "AMI", "driver", "agent", "configuration", "metric", "event"),
    "Xids",
)


def status_cells(row: FleetStatus) -> list[str]:
    """Return an instance's cells of STATUS_COLUMNS."""
    state = row.state or MachineState()
    cells = (
        row.machine.instance_id,
        row.machine.instance_type,
        row.machine.image_id,
        state.driver,
        state.agent,
        state.configuration,
        *(f"{at:%m-%d %H:%M}" if at else "" for at in (row.last_metric, row.last_event)),
        ", ".join(f"{code}×{count}" for code, count in sorted(row.xids.items())),
    )
    return [cell or "-" for cell in cells]


# What CloudWatch has, asked for many instances at once


def last_metrics(
    target: Target, settings: Telemetry, ids: Sequence[str], since: datetime
) -> dict[str, datetime]:
    """Return the minute of each instance's newest GPU metric since then, where there is one."""
    facts = telemetry_facts()["gpu_metrics"]
    # One that each GPU has, with MIG too; the agent sums it up by instance (`aggregate_by`).
    always = [name for name in settings.metrics if name not in facts["lost_with_mig"]]
    metric = {
        "Namespace": settings.namespace,
        "MetricName": f"{facts['prefix']}{(always or ['memory_total'])[0]}",
    }
    newest: dict[str, datetime] = {}
    for batch in in_pages(ids, _QUERIES):
        queries = []
        for number, key in enumerate(batch):
            of_it = {**metric, "Dimensions": [{"Name": "InstanceId", "Value": key}]}
            stat = {"Metric": of_it, "Period": 60, "Stat": "SampleCount"}
            queries.append({"Id": f"m{number}", "MetricStat": stat})
        asked: Any = {
            "MetricDataQueries": queries,
            "StartTime": since.replace(second=0, microsecond=0),
            "EndTime": utc_now() + timedelta(minutes=1),
            "ScanBy": "TimestampDescending",
        }
        client = aws.client("cloudwatch", target)
        with aws.explained("CloudWatch could not be asked for metrics"):
            for result in aws.paginated(client, "get_metric_data", "MetricDataResults", **asked):
                key = batch[int(result["Id"][1:])]
                times = [*result["Timestamps"], *([newest[key]] if key in newest else [])]
                if times:
                    newest[key] = max(times)
    return newest


def _last_events(target: Target, group: str, ids: Iterable[str]) -> dict[str, datetime]:
    """Return the time of the newest event of each instance; without those that never sent one."""
    wanted = set(ids)
    found: dict[str, datetime] = {}
    for stream in _logged(
        target, group, "describe_log_streams", "logStreams", logStreamNamePrefix="i-"
    ):
        newest, key = stream.get("lastEventTimestamp"), stream["logStreamName"]
        if newest and key in wanted:
            found[key] = datetime.fromtimestamp(newest / 1000, timezone.utc)
        # Streams of instances that are gone follow, for as long as events are kept.
        if len(found) == len(wanted):
            break
    return found


def _xids_since(target: Target, group: str, since: datetime) -> dict[str, dict[str, int]]:
    """Return instance → Xid → how often, without test events."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for stream, event in _events(target, group, "{ $.xid > 0 }", since):
        if event.get("injected") or not isinstance(event.get("xid"), int):
            continue
        number = event.get("count", 1)
        counts[stream][str(event["xid"])] += max(number, 1) if isinstance(number, int) else 1
    return {stream: dict(count) for stream, count in counts.items()}


def arrived_tests(target: Target, group: str, mark: str, since: datetime) -> set[str]:
    """Return the instances whose test event has arrived."""
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
    query: Any = {"filterPattern": pattern, "startTime": int(since.timestamp() * 1000)}
    for event in _logged(target, group, "filter_log_events", "events", **query):
        try:
            line = json.loads(event["message"])
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield str(event["logStreamName"]), line


def _logged(target: Target, group: str, operation: str, key: str, **query: Any) -> Iterator[Any]:
    """Yield what CloudWatch Logs has in a group; nothing where there is no such group."""
    logs = aws.client("logs", target)
    with aws.explained(f"the log group {group} could not be read"):
        try:
            yield from aws.paginated(logs, operation, key, logGroupName=group, **query)
        except logs.exceptions.ResourceNotFoundException:
            return
