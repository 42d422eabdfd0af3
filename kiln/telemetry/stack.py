"""The CloudFormation stack around GPU machines: role, agent configuration, alarms, dashboard.

The text is templates/stack/; here are the values that depend on settings and instance types.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import ROOT
from kiln.base.templates import render
from kiln.facts import instance, table
from kiln.telemetry.agent import EVENTS, STAGED, agent_files
from kiln.telemetry.settings import Telemetry, telemetry_facts

TEMPLATE = ROOT / "deploy" / "gpu-telemetry.yaml"
# Types of the committed template, an example: `./invoke stack.render` takes those of the rows.
_EXAMPLE_TYPES = ("g4dn.xlarge", "g6.12xlarge", "p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge")
# The parameter that leaves a log group alone which is there already → the group's output.
LOG_GROUPS = {"CreateEventLogGroup": "EventLogGroup", "CreateDcgmLogGroup": "DcgmLogGroup"}
# Sent by each GPU, also with MIG, unlike utilization.
_ALWAYS_SENT = "nvidia_smi_memory_used"
_ALARM_PERIOD = 300
_MOST_GPUS = 16
# After as many restarts with the same fatal event, another instance is the only help.
_REPLACE_AFTER = 2


@dataclass(frozen=True)
class StackInputs:
    """The settings of the images, and the machines that alarms and prices are about.

    `gpu_types` are the instance types whose GPUs are counted and priced, `watched` the ids of
    instances that must never be silent.
    """

    settings: Telemetry
    gpu_types: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()


def stack_template(inputs: StackInputs) -> str:
    """The template as YAML."""
    settings, facts = inputs.settings, table("telemetry-stack")
    wanted = telemetry_facts()["logs"]["class_with_metric_filters"]
    if settings.log_class != wanted:
        raise KilnError(
            f"telemetry: log_class {settings.log_class} has no metric filters, which the stack's "
            "alarms need",
            hint=f"set log_class: {wanted}",
        )
    counted = [kind for name in inputs.gpu_types if (kind := _counted_type(name, settings))]
    # Without the sum over an instance's GPUs there is no series of the instance.
    ids = inputs.watched if ("InstanceId",) in settings.aggregate_by else ()
    watched = {f"Silent{instance_id.replace('-', '')}": instance_id for instance_id in ids}
    slices = ",".join(["InstanceId", *telemetry_facts()["dcgm"]["mig_dimensions"]])
    return render(
        "stack/gpu-telemetry.yaml.j2",
        settings=settings,
        limits=facts["alarms"],
        event_namespace=facts["events"]["namespace"],
        dcgm_log_group=telemetry_facts()["dcgm"]["log_group"],
        systems_manager=facts["systems_manager"],
        parameter_prefix=facts["parameters"]["prefix"],
        configurations=_configurations(settings),
        always_sent=_ALWAYS_SENT,
        counted_types=counted,
        watched=watched,
        silent_alarms=[kind["alarm"] for kind in counted] + list(watched),
        gpu_search=lambda metric: gpu_search(settings, metric),
        slice_schema=f"{{{_quoted(settings.namespace)},{slices}}}",
        replace_after=_REPLACE_AFTER,
        priced=_idle_costs(inputs),
        price_list=table("ec2-prices")["instances"],
    )


def example_text() -> str:
    """The content of deploy/gpu-telemetry.yaml: default settings, some instance types."""
    return stack_template(StackInputs(Telemetry(), _EXAMPLE_TYPES))


def alarms_without_data(settings: Telemetry) -> list[str]:
    """Messages for who deploys the stack: alarms that see nothing of images with these settings."""
    wanted = {"hot": "temperature_gpu", "power": "power_draw", "idle": "utilization_gpu"}
    return [
        f"alarm {alarm} sees nothing of images with these settings, which do not send {metric}: "
        "add it to extra_metrics of `telemetry`"
        for alarm, metric in wanted.items()
        if metric not in settings.metrics and not (alarm == "hot" and settings.dcgm)
    ]


def parameters_given(texts: Iterable[str], declared: Iterable[str]) -> dict[str, str]:
    """The values of `Email=team@example.com` and others by parameter, for CloudFormation."""
    values = {}
    for text in texts:
        name, equals, values[name] = text.partition("=")
        if not equals or name not in declared:
            hint = f"expected Name=value; {did_you_mean(name, declared)}"
            raise KilnError(f"--parameter {text}: the stack has no such parameter", hint=hint)
    return values


def gpu_search(settings: Telemetry, metric: str) -> str:
    """The search for a measurement of each GPU, or of each instance where only sums are sent."""
    name = f'Namespace="{settings.namespace}" MetricName="nvidia_smi_{metric}"'
    if settings.drop_original:
        return f"{{{_quoted(settings.namespace)},{','.join(settings.aggregate_by[0])}}} {name}"
    # The summed-up series have no index.
    return f"{name} index=({' OR '.join(map(str, range(_MOST_GPUS)))})"


def _quoted(namespace: str) -> str:
    """A namespace in the schema of a search: in quotes unless it is one word."""
    return namespace if namespace.replace("_", "").isalnum() else f'"{namespace}"'


def _counted_type(kind: str, settings: Telemetry) -> dict[str, Any] | None:
    """An instance type whose GPUs can be counted: fewer samples than these and one is silent.

    None for a single GPU, and where the series of a GPU are not sent or do not tell their type.
    """
    gpus, each = instance(kind).gpu_count, _ALARM_PERIOD // settings.interval
    summed_up = any("InstanceType" in names for names in settings.aggregate_by)
    told = "InstanceType" in settings.dimensions and not settings.drop_original and not summed_up
    if gpus < 2 or each < 1 or not told:
        return None
    name = "".join(part.capitalize() for part in kind.replace("-", ".").split("."))
    # One GPU of all is missing; a sample may come a little late.
    samples = gpus * each - (each - 1)
    return {"alarm": f"GpuSilent{name}", "type": kind, "gpus": gpus, "samples": samples}


def _idle_costs(inputs: StackInputs) -> list[list[dict[str, str]]]:
    """Dollars an hour for the part of each GPU that is not in use, by the list prices we know."""
    hourly = table("ec2-prices")["instances"]["hourly"]
    search = gpu_search(inputs.settings, "utilization_gpu")
    priced = [kind for kind in inputs.gpu_types if hourly.get(kind) is not None]
    lines = []
    for number, kind in enumerate(priced, start=1):
        idle = f"SUM(100 - SEARCH('{search} InstanceType=\"{kind}\"', 'Average', 60))"
        price = float(hourly[kind]) / max(instance(kind).gpu_count, 1)
        expression = f"{idle} / 100 * {price:.6f}"
        lines.append([{"expression": expression, "id": f"cost{number}", "label": kind}])
    return lines


def _configurations(settings: Telemetry) -> dict[str, dict[str, str]]:
    """The agent's configuration of each profile, for a parameter of Systems Manager.

    It has the event log and the GPU metrics: on an AMI Kiln image it repeats sections that are
    there already, which the agent accepts. EFA, DCGM and `host` are left to the image.
    """
    limits = table("telemetry-stack")["parameters"]
    found = {}
    for profile in limits["profiles"]:
        files = agent_files(settings.model_copy(update={"profile": profile}), driver="any")
        # One has the section logs, the other metrics.
        whole = json.loads(files[EVENTS]) | json.loads(files[f"{STAGED}/gpu.json"])
        text = json.dumps(whole, separators=(",", ":"))
        fits = len(text.encode()) <= limits["standard"]
        found[profile] = {"text": text, "tier": "Standard" if fits else "Advanced"}
    return found
