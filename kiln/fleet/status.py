"""`fleet.status`: what each instance reports, and what is missing where it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from kiln.base.versions import below
from kiln.base.vocabulary import as_time, utc_now
from kiln.cloud.target import Target
from kiln.facts.instance_types import instances as gpu_types
from kiln.fleet import cloudwatch
from kiln.fleet.document import machine_script
from kiln.fleet.machines import (
    CommandAnswer,
    FleetMachine,
    Say,
    managed_machines,
    run_command,
)
from kiln.telemetry import Telemetry
from kiln.telemetry.settings import telemetry_facts

_SHELL = {"DocumentName": "AWS-RunShellScript"}
# Seconds that a machine has to say what is on it.
_PATIENCE = 60.0
# A series is fresh as long as it is not older than this many intervals, and than so many minutes.
_INTERVALS, _FRESH = 3, timedelta(minutes=10)


@dataclass(frozen=True)
class MachineState:
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
        """Where the agent's configuration is from."""
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
class Lack:
    """Something that an instance lacks; `stops`: telemetry cannot be installed without it."""

    what: str
    why: str
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class FleetStatus:
    """An instance and its reports. `state` is None where it did not answer; `xids` are those of the
    last day, Xid → how often."""

    machine: FleetMachine
    system: str = ""
    state: MachineState | None = None
    last_metric: datetime | None = None
    last_event: datetime | None = None
    xids: Mapping[str, int] = field(default_factory=dict)
    reports: bool = False
    missing: tuple[Lack, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The entry of `fleet.status --json`."""
        state = self.state or MachineState()
        return {
            **asdict(self.machine),
            "system": self.system,
            "driver": state.driver,
            "agent_version": state.agent,
            "configuration": state.configuration,
            "last_metric": as_time(self.last_metric) if self.last_metric else None,
            "last_event": as_time(self.last_event) if self.last_event else None,
            "xids": dict(self.xids),
            "reports": self.reports,
            "missing": list(map(str, self.missing)),
        }


def fleet_status(
    target: Target,
    machines: Sequence[FleetMachine],
    settings: Telemetry,
    say: Say,
) -> list[FleetStatus]:
    """The state of these instances, in their order. Those that Systems Manager reaches are asked
    what is on them; nothing is changed."""
    if not machines:
        return []
    now = utc_now()
    ids = [machine.instance_id for machine in machines]
    managed = managed_machines(target, ids)
    answers = ask_machines(target, online(machines, managed), say)
    metrics = cloudwatch.last_metrics(target, settings, ids, now - cloudwatch.RECENT)
    events = cloudwatch.last_events(target, settings.log_group, ids)
    xids = cloudwatch.xids_since(target, settings.log_group, now - timedelta(days=1))
    # Settings of events alone send no metric.
    fresh = max(_INTERVALS * timedelta(seconds=settings.interval), _FRESH)
    result = []
    for machine in machines:
        key = machine.instance_id
        answer, metric, event = answers.get(key), metrics.get(key), events.get(key)
        info = managed.get(key, {})
        state = read_state(answer.output) if answer and answer.ok else None
        lacks = [
            *_lacks_of_machine(machine, info, answer, state),
            *(_lacks_of_metrics(metric, now, fresh) if settings.metrics else ()),
            *(() if event else (Lack("no events", "its stream is not there", stops=False),)),
        ]
        if not machine.runs:
            lacks = [Lack("not running", f"it is {machine.state}")]
        silent = {"not running", "no metrics", "no events"}
        result.append(
            FleetStatus(
                machine,
                system=" ".join(filter(None, map(info.get, ("PlatformName", "PlatformVersion")))),
                state=state,
                last_metric=metric,
                last_event=event,
                xids=xids.get(key, {}),
                reports=not silent & {lack.what for lack in lacks},
                missing=tuple(lacks),
            )
        )
    return result


def online(machines: Sequence[FleetMachine], managed: Mapping[str, Any]) -> list[str]:
    """The ids of the instances that run and that Systems Manager reaches."""
    return [
        machine.instance_id
        for machine in machines
        if machine.runs and managed.get(machine.instance_id, {}).get("PingStatus") == "Online"
    ]


def ask_machines(target: Target, ids: Sequence[str], say: Say) -> dict[str, CommandAnswer]:
    """The answer of each instance on what is on it."""
    lines = ["bash -s -- look <<'AMI_KILN_MACHINE'", *machine_script().splitlines()]
    batches = [(ids, {"commands": [*lines, "AMI_KILN_MACHINE"]})]
    return run_command(target, _SHELL, batches, patience=_PATIENCE, say=say)


def read_state(output: str) -> MachineState:
    """The state in what a machine printed."""
    printed = dict(line.partition("=")[::2] for line in output.splitlines() if "=" in line)
    return MachineState(**{each.name: printed.get(each.name, "") for each in fields(MachineState)})


def status_table(rows: Sequence[FleetStatus]) -> str:
    """The instances for a terminal: a line for each, and below it what is missing."""
    if not rows:
        return "no running instance"
    heads = (
        *("instance", "type", "AMI", "driver", "agent", "configuration", "metric", "event"),
        "Xids",
    )
    table = [heads, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in table
    ]
    for number in range(len(rows), 0, -1):
        lines[number + 1 : number + 1] = [f"    {lack}" for lack in rows[number - 1].missing]
    return "\n".join(
        [*lines, f"{sum(row.reports for row in rows)} of {len(rows)} instances report"]
    )


def _cells(row: FleetStatus) -> tuple[str, ...]:
    state = row.state or MachineState()
    cells = (
        row.machine.instance_id,
        row.machine.instance_type,
        row.machine.image_id,
        state.driver,
        state.agent,
        state.configuration,
        _clock(row.last_metric),
        _clock(row.last_event),
        ", ".join(f"{code}×{count}" for code, count in sorted(row.xids.items())),
    )
    return tuple(cell or "-" for cell in cells)


def _clock(moment: datetime | None) -> str:
    if moment is None:
        return ""
    today = moment.date() == utc_now().date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d")


def _lacks_of_metrics(metric: datetime | None, now: datetime, fresh: timedelta) -> list[Lack]:
    if metric and now - metric < fresh:
        return []
    hours = cloudwatch.RECENT.seconds // 3600
    why = f"none since {metric:%H:%M} UTC" if metric else f"none in {hours} hours"
    return [Lack("no metrics", why, stops=False)]


def _lacks_of_machine(
    machine: FleetMachine,
    info: Mapping[str, str],
    answer: CommandAnswer | None,
    state: MachineState | None,
) -> list[Lack]:
    """Why an instance can neither report nor be reached, and what one that answers lacks."""
    lacks = []
    gpu = machine.instance_type in gpu_types()
    if not gpu:
        lacks.append(Lack("no GPU", f"{machine.instance_type} is not a type with NVIDIA GPUs"))
    if not machine.role:
        why = "the instance has no instance profile, so it may report nothing"
        lacks.append(Lack("no role", why))
    if not info:
        role = f"{machine.role} lacks AmazonSSMManagedInstanceCore" if machine.role else "no role"
        why = f"it never registered ({role}, no agent, or no way to the service)"
        lacks.append(Lack("no SSM", why))
    elif info["PingStatus"] != "Online":
        lacks.append(Lack("no SSM", f"its agent is {info['PingStatus']}"))
    elif answer and not answer.ok:
        lacks.append(Lack("no SSM", answer.why))
    if not state:
        return lacks
    oldest = telemetry_facts()["agent"]["since"]["nvidia_gpu"]
    if gpu and not state.driver:
        lacks.append(Lack("no driver", "nvidia-smi does not answer"))
    if not state.agent:
        lacks.append(Lack("no agent", "the CloudWatch agent is not installed", stops=False))
    elif below(state.agent, oldest):
        why = f"{state.agent} does not know GPU metrics, which need {oldest}"
        lacks.append(Lack("old agent", why))
    elif state.configuration == "none":
        lacks.append(Lack("no configuration", "the agent has none", stops=False))
    return lacks
