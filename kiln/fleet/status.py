"""`fleet.status`: what each instance reports, and what is missing where it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kiln.base.paths import TEMPLATES
from kiln.base.times import as_time, utc_now
from kiln.cloud.target import Target
from kiln.facts.instance_types import instances as gpu_types
from kiln.fleet import cloudwatch
from kiln.fleet.commands import CommandAnswer, CommandDocument, run_command
from kiln.fleet.machines import FleetMachine, Managed, managed_machines
from kiln.telemetry import Telemetry
from kiln.telemetry.facts import telemetry_facts, version_parts

_ONLINE = "Online"
_SHELL = CommandDocument("AWS-RunShellScript")
# Seconds that a machine has to say what is on it.
_PATIENCE = 60.0
# A series is fresh as long as it is not older than this many intervals, and than so many minutes.
_INTERVALS, _FRESH = 3, timedelta(minutes=10)


@dataclass(frozen=True)
class MachineState:
    """What is on a machine, as it says itself. `files` are the agent's that are not ours;
    `unconfirmed`: an installation began there, and nobody has seen its reports in CloudWatch."""

    driver: str = ""
    agent: str = ""
    bundle: str = ""
    image: bool = False
    by_hand: bool = False
    unconfirmed: bool = False
    agent_package: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lack:
    """What an instance lacks, and why; `stops`: telemetry cannot be installed without it."""

    what: str
    why: str
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class FleetStatus:
    """An instance of the fleet. `configuration` is where that of its agent is from; `xids` are
    those of the last day, Xid → how often; times are aware."""

    instance_id: str
    image_id: str
    instance_type: str
    name: str
    state: str
    system: str
    driver: str
    agent_version: str
    configuration: str
    last_metric: datetime | None
    last_event: datetime | None
    xids: Mapping[str, int]
    reports: bool
    missing: tuple[Lack, ...]
    machine_state: MachineState | None = field(default=None, repr=False)
    online: bool = False

    def as_json(self) -> dict[str, Any]:
        """What `fleet.status --json` prints of it."""
        return {
            "instance_id": self.instance_id,
            "name": self.name,
            "image_id": self.image_id,
            "instance_type": self.instance_type,
            "state": self.state,
            "system": self.system,
            "driver": self.driver,
            "agent_version": self.agent_version,
            "configuration": self.configuration,
            "last_metric": _iso(self.last_metric),
            "last_event": _iso(self.last_event),
            "xids": dict(self.xids),
            "reports": self.reports,
            "missing": list(map(str, self.missing)),
        }


def fleet_status(
    target: Target,
    machines: Sequence[FleetMachine],
    settings: Telemetry,
    *,
    waits: Callable[[str], None] = lambda text: None,
) -> list[FleetStatus]:
    """The state of these instances, in their order.

    Machines that Systems Manager reaches are asked what is on them; nothing is changed. Raises
    KilnError (exit status 1) if AWS refuses.
    """
    now = utc_now()
    ids = [machine.instance_id for machine in machines]
    managed = managed_machines(target, ids)
    running = {machine.instance_id for machine in machines if machine.runs}
    online = [
        instance_id
        for instance_id in ids
        if instance_id in running and managed.get(instance_id, _NOBODY).ping == _ONLINE
    ]
    answers = ask_machines(target, online, waits)
    metrics = cloudwatch.last_metrics(target, settings, ids, now - cloudwatch.RECENT) if ids else {}
    events = cloudwatch.last_events(target, settings.log_group, ids) if ids else {}
    xids = cloudwatch.xids_since(target, settings.log_group, now - timedelta(days=1)) if ids else {}
    fresh = max(_INTERVALS * timedelta(seconds=settings.interval), _FRESH)
    result = []
    for machine in machines:
        key = machine.instance_id
        answer = answers.get(key)
        state = read_state(answer.output) if answer and answer.ok else None
        metric, event = metrics.get(key), events.get(key)
        # Settings of events alone send no metric.
        measured = not settings.metrics or (metric is not None and now - metric < fresh)
        reports = machine.runs and event is not None and measured
        result.append(
            FleetStatus(
                instance_id=key,
                image_id=machine.image_id,
                instance_type=machine.instance_type,
                name=machine.name,
                state=machine.state,
                system=managed.get(key, _NOBODY).system,
                driver=state.driver if state else "",
                agent_version=state.agent if state else "",
                configuration=_origin(state) if state else "",
                last_metric=metric,
                last_event=event,
                xids=xids.get(key, {}),
                reports=reports,
                missing=tuple(
                    lack
                    for lack in _missing(
                        machine, managed.get(key), answer, state, metric, event, fresh
                    )
                    if settings.metrics or lack.what != "no metrics"
                ),
                machine_state=state,
                online=key in online,
            )
        )
    return result


def ask_machines(
    target: Target, ids: Sequence[str], waits: Callable[[str], None]
) -> dict[str, CommandAnswer]:
    """What each of them says of itself. Raises KilnError (exit status 1)."""
    if not ids:
        return {}
    script = (TEMPLATES / "fleet" / "machine.sh").read_text(encoding="ascii")
    lines = ["bash -s -- look <<'AMI_KILN_MACHINE'", *script.splitlines(), "AMI_KILN_MACHINE"]
    batches = [(ids, {"commands": lines})]
    return run_command(target, _SHELL, batches, patience=_PATIENCE, waits=waits)


def read_state(output: str) -> MachineState:
    """What `look` of machine.sh prints."""
    fields = dict(line.partition("=")[::2] for line in output.splitlines() if "=" in line)
    return MachineState(
        driver=fields.get("driver", ""),
        agent=fields.get("agent", ""),
        bundle=fields.get("bundle", ""),
        image=fields.get("image") == "yes",
        by_hand=fields.get("bundle_by_hand") == "yes",
        unconfirmed=fields.get("unconfirmed") == "yes",
        agent_package=fields.get("agent_package", ""),
        files=tuple(name for name in fields.get("files", "").split(",") if name),
    )


def agent_too_old(agent: str) -> Lack | None:
    """Why an agent cannot be configured, None for one that can."""
    oldest = telemetry_facts()["agent"]["since"]["nvidia_gpu"]
    if agent and version_parts(agent) < version_parts(oldest):
        return Lack("old agent", f"{agent} does not know GPU metrics, which need {oldest}")
    return None


_NOBODY = Managed("", "")


def _origin(state: MachineState) -> str:
    """Where the agent's configuration is from."""
    parts = []
    if state.bundle:
        parts.append(f"fleet.install {state.bundle[:12]}")
    elif state.by_hand:
        parts.append("telemetry.bundle")
    elif state.image:
        parts.append("AMI Kiln's image")
    for name in state.files:
        source = "Parameter Store " if name.startswith("ssm_") else ""
        parts.append(f"{source}{name.removeprefix('ssm_')}")
    return " + ".join(parts) or ("none" if state.agent else "")


def _missing(
    machine: FleetMachine,
    managed: Managed | None,
    answer: CommandAnswer | None,
    state: MachineState | None,
    metric: datetime | None,
    event: datetime | None,
    fresh: timedelta,
) -> list[Lack]:
    """What an instance lacks, each with why."""
    if not machine.runs:
        return [Lack("not running", f"it is {machine.state}")]
    gpu = machine.instance_type in gpu_types()
    result = [*_no_way_in(machine, managed, answer), *(_not_there(state, gpu) if state else [])]
    if not gpu:
        why = f"{machine.instance_type} is not a type with NVIDIA GPUs"
        result.insert(0, Lack("no GPU", why))
    if metric is None:
        why = f"none in {cloudwatch.RECENT.seconds // 3600} hours"
        result.append(Lack("no metrics", why, stops=False))
    elif utc_now() - metric >= fresh:
        result.append(Lack("no metrics", f"none since {metric:%H:%M} UTC", stops=False))
    if event is None:
        result.append(Lack("no events", "its stream is not there", stops=False))
    return result


def _no_way_in(
    machine: FleetMachine, managed: Managed | None, answer: CommandAnswer | None
) -> list[Lack]:
    """Why an instance can neither report nor be reached."""
    result = []
    if not machine.role:
        why = "the instance has no instance profile, so it may report nothing"
        result.append(Lack("no role", why))
    if managed is None:
        lacks = f"{machine.role} lacks AmazonSSMManagedInstanceCore" if machine.role else "no role"
        why = f"it never registered ({lacks}, no agent, or no way to the service)"
        result.append(Lack("no SSM", why))
    elif managed.ping != _ONLINE:
        result.append(Lack("no SSM", f"its agent is {managed.ping}"))
    if answer and not answer.ok:
        result.append(Lack("no SSM", answer.why))
    return result


def _not_there(state: MachineState, gpu: bool) -> list[Lack]:
    """What is missing on a machine that reports what is on it."""
    result = []
    if gpu and not state.driver:
        result.append(Lack("no driver", "nvidia-smi does not answer"))
    if not state.agent:
        why = "the CloudWatch agent is not installed"
        result.append(Lack("no agent", why, stops=False))
    elif old := agent_too_old(state.agent):
        result.append(old)
    elif not (state.bundle or state.image or state.by_hand or state.files):
        result.append(Lack("no configuration", "the agent has none", stops=False))
    return result


def _iso(moment: datetime | None) -> str | None:
    return as_time(moment) if moment else None
