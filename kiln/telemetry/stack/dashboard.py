"""The dashboard `GPU-<stack>`: what GPUs do, what went wrong, what idling costs.

Graphs search for their series, so they survive a driver that adds the dimension `arch`, and
instances that come and go. The body is substituted by CloudFormation: `${AWS::Region}` is its word,
`${!PROP(…)}` becomes CloudWatch's `${PROP(…)}`.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kiln.facts import instance, table
from kiln.telemetry.facts import telemetry_facts
from kiln.telemetry.settings import Telemetry
from kiln.telemetry.stack import events
from kiln.telemetry.stack.inputs import Resource, StackInputs, stack_facts, substituted

OUTPUTS = {"DashboardName": {"Ref": "Dashboard"}}
Widget = dict[str, Any]
_MOST_GPUS = 16
_MOST_ALARMS = 100
_COLUMNS = 24
_PERIOD = 60
# `gpu-xid summary` calls for another instance after as many restarts: restarts.replace_after.
_REPLACE_AFTER = 2
# A GPU that is lost without an Xid has the code of the Xid for a lost GPU.
_CODE = "coalesce(xid, sxid, implied_xid) as code"


def dashboard_resource(inputs: StackInputs, alarms: Mapping[str, Resource]) -> Resource:
    """AWS::CloudWatch::Dashboard; `alarms` by their names in the template."""
    body = dashboard_body(
        inputs, [name for name, alarm in alarms.items() if "Condition" not in alarm]
    )
    return {
        "Type": "AWS::CloudWatch::Dashboard",
        "Properties": {
            "DashboardName": substituted("GPU-${AWS::StackName}"),
            "DashboardBody": substituted(_text(body)),
        },
    }


def _text(body: dict[str, Any]) -> str:
    """JSON with a line per widget: short enough for a template, and still to be compared."""
    widgets = [
        json.dumps(widget, ensure_ascii=False, separators=(",", ":")) for widget in body["widgets"]
    ]
    head = json.dumps({**body, "widgets": []})
    return head.replace("[]", "[\n" + ",\n".join(widgets) + "]") + "\n"


def dashboard_body(inputs: StackInputs, alarms: Iterable[str]) -> dict[str, Any]:
    """The body, with CloudFormation's `${…}` in its texts."""
    settings = inputs.settings
    rows = [
        *_alarms(list(alarms)),
        [_events_table(settings), _restarts_table(settings)],
        _event_counts(),
        [_gpu(settings, "GPU use (%)", "utilization_gpu", maximum=100),
         _gpu(settings, "Memory in use (MB)", "memory_used")],
        [_gpu(settings, "Power (W)", "power_draw"),
         _gpu(settings, "Temperature (C)", "temperature_gpu")],
        [_gpu(settings, "SM clock (MHz)", "clocks_current_sm"),
         _gpu(settings, "Memory clock (MHz)", "clocks_current_memory")],
        [_gpu(settings, "PCIe link width: one that drops is a fault", "pcie_link_width_current",
              statistic="Minimum"),
         _gpu(settings, "PCIe generation: 1 while a GPU idles is usual", "pcie_link_gen_current")],
        _efa(settings),
        _slices(settings),
        [_idle_cost(settings, inputs.gpu_types)] if inputs.gpu_types else [],
    ]  # fmt: skip
    return {"start": "-PT6H", "periodOverride": "inherit", "widgets": _placed(rows)}


def _placed(rows: list[list[Widget]]) -> list[Widget]:
    """The widgets of each row beside one another, the rows below one another."""
    placed, top = [], 0
    for row in filter(None, rows):
        width = _COLUMNS // len(row)
        for number, widget in enumerate(row):
            placed.append({"x": number * width, "y": top, "width": width, **widget})
        top += max(int(widget["height"]) for widget in row)
    return placed


def _alarms(names: list[str]) -> list[list[Widget]]:
    """A row for each hundred: a widget takes no more."""
    return [
        [
            {
                "type": "alarm",
                "height": 4,
                "properties": {
                    "title": "Alarms of ${AWS::StackName}",
                    "sortBy": "stateUpdatedTimestamp",
                    "alarms": [f"${{{name}.Arn}}" for name in names[start : start + _MOST_ALARMS]],
                },
            }
        ]
        for start in range(0, len(names), _MOST_ALARMS)
    ]


def _logs(title: str, group: str, *parts: str) -> Widget:
    return {
        "type": "log",
        "height": 6,
        "properties": {
            "title": title,
            "region": "${AWS::Region}",
            "view": "table",
            "query": " | ".join([f"SOURCE '{group}'", *parts]),
        },
    }


def _events_table(settings: Telemetry) -> Widget:
    return _logs(
        "Xid, SXid and health events",
        settings.log_group,
        f"fields @timestamp, @logStream as instance, event, {_CODE}, severity, "
        "name, gpu, pci, action, injected as drill",
        'filter event in ["xid", "sxid", "gpu-lost", "health"]',
        "sort @timestamp desc",
        "limit 100",
    )


def _restarts_table(settings: Telemetry) -> Widget:
    """A log widget has no time range of its own: it looks as far back as the dashboard does."""
    return _logs(
        f"Replace the instance: the same fatal event again after {_REPLACE_AFTER} restarts, "
        "in the dashboard's time range",
        settings.log_group,
        # A lost GPU's address has the function that an Xid's has not.
        'fields @logStream as instance, coalesce(uuid, replace(pci, ".0", "")) as device, ' + _CODE,
        'filter severity = "fatal" and event in ["xid", "sxid", "gpu-lost"] '
        "and not ispresent(injected)",
        "stats count_distinct(boot_id) as boots, max(@timestamp) as newest "
        "by instance, device, code",
        f"filter boots > {_REPLACE_AFTER}",
        "sort newest desc",
        # `stats` gives a time as a number of milliseconds.
        "display instance, device, code, boots, fromMillis(newest) as last",
    )


def _event_counts() -> list[Widget]:
    namespace = stack_facts()["events"]["namespace"]
    graphs = []
    for title, metric, dimension in (
        ("Events by severity", events.BY_SEVERITY, "Severity"),
        ("Events by Xid", events.BY_XID, "Xid"),
        ("Events by SXid", events.BY_SXID, "SXid"),
    ):
        search = f'{{{namespace},{dimension},ImageId,InstanceType}} MetricName="{metric}"'
        label = f"${{!PROP('Dim.{dimension}')}} ${{!PROP('Dim.InstanceType')}} "
        label += "${!PROP('Dim.ImageId')}"
        graphs.append(
            _graph(title, [_searched(search, "Sum", 300, label)], view="bar", stacked=False)
        )
    return graphs


def _gpu(
    settings: Telemetry,
    title: str,
    metric: str,
    *,
    statistic: str = "Average",
    maximum: int | None = None,
) -> Widget:
    label = "${!PROP('Dim.InstanceId')} GPU ${!PROP('Dim.index')}"
    axis = {"yAxis": {"left": {"min": 0, "max": maximum}}} if maximum else {}
    search = gpu_search(settings, metric)
    return _graph(title, [_searched(search, statistic, _PERIOD, label)], **axis)


def gpu_search(settings: Telemetry, metric: str) -> str:
    """The search for a measurement of each GPU, or of each instance where only sums are sent."""
    name = f'Namespace="{settings.namespace}" MetricName="nvidia_smi_{metric}"'
    if settings.drop_original:
        return f"{{{_quoted(settings.namespace)},{','.join(settings.aggregate_by[0])}}} {name}"
    # The summed-up series have no index.
    numbers = " OR ".join(map(str, range(_MOST_GPUS)))
    return f"{name} index=({numbers})"


def _efa(settings: Telemetry) -> list[Widget]:
    label = "${!PROP('Dim.InstanceId')} ${!PROP('Dim.device')} ${!PROP('MetricName')}"

    def counters(title: str, *names: str) -> Widget:
        either = " OR ".join(f'"{name}"' for name in names)
        # Whatever the name of a device is (efa_0, rdmap16s27), it has one port; sums have none.
        # https://github.com/torvalds/linux/blob/v6.12/drivers/infiniband/hw/efa/efa_main.c
        search = f'Namespace="{settings.namespace}" MetricName=({either}) port=1'
        return _graph(title, [_searched(search, "Sum", _PERIOD, label)])

    return [
        counters("EFA bytes a minute", "efa_rx_bytes", "efa_tx_bytes"),
        counters("EFA drops, retransmissions, errors", "efa_rx_dropped", "efa_retrans_pkts",
                 "efa_rdma_read_wr_err", "efa_rdma_write_wr_err"),
    ]  # fmt: skip


def _slices(settings: Telemetry) -> list[Widget]:
    dimensions = ",".join(["InstanceId", *telemetry_facts()["dcgm"]["mig_dimensions"]])
    label = "${!PROP('Dim.InstanceId')} GPU ${!PROP('Dim.gpu')} slice ${!PROP('Dim.GPU_I_ID')} "
    label += "${!PROP('Dim.GPU_I_PROFILE')}"
    widgets = []
    for title, field in (
        ("MIG slices: share of time in use", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        ("MIG slices: memory in use (MB)", "DCGM_FI_DEV_FB_USED"),
    ):
        search = f'{{{_quoted(settings.namespace)},{dimensions}}} MetricName="{field}"'
        widgets.append(_graph(title, [_searched(search, "Average", _PERIOD, label)]))
    return widgets


def _idle_cost(settings: Telemetry, gpu_types: Iterable[str]) -> Widget:
    """Dollars an hour for the part of each GPU that is not in use, by the list prices we know."""
    prices = table("ec2-prices")["instances"]
    lines: list[list[dict[str, Any]]] = []
    for kind in gpu_types:
        hourly, gpus = prices["hourly"].get(kind), max(instance(kind).gpu_count, 1)
        if hourly is None:
            continue
        search = f'{gpu_search(settings, "utilization_gpu")} InstanceType="{kind}"'
        number = len(lines) + 1
        idle = f"SUM(100 - SEARCH('{search}', 'Average', {_PERIOD}))"
        lines.append(
            [
                {
                    "expression": f"{idle} / 100 * {float(hourly) / gpus:.6f}",
                    "id": f"cost{number}",
                    "label": kind,
                }
            ]
        )
    title = f"Idle cost: US dollars an hour, list prices of {prices['region']}, {prices['as_of']}"
    return _graph(title, lines, stacked=True)


def _searched(search: str, statistic: str, period: int, label: str) -> list[dict[str, Any]]:
    return [
        {
            "expression": f"SEARCH('{search}', '{statistic}', {period})",
            "id": "found",
            "label": label,
        }
    ]


def _graph(title: str, metrics: list[list[dict[str, Any]]], **properties: Any) -> Widget:
    return {
        "type": "metric",
        "height": 6,
        "properties": {
            "title": title,
            "region": "${AWS::Region}",
            "view": "timeSeries",
            "period": _PERIOD,
            "metrics": metrics,
            **properties,
        },
    }


def _quoted(name: str) -> str:
    """A namespace in a schema: in quotes unless it is one word."""
    return name if name.replace("_", "").isalnum() else f'"{name}"'
