"""Each metric filter of the telemetry stack counts the monitor's events that it is meant for."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from kiln.base.paths import runtime_module
from kiln.base.yaml_files import parse_template
from kiln.telemetry import stack
from kiln.xid import archive

LINE = "NVRM: Xid (PCI:0000:3b:00): {}, pid=7, name=app, {}"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 00 sourcetrack timeout"
LOST = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."


def matches(pattern: str, event: dict[str, Any]) -> bool:
    """Whether a JSON filter pattern of CloudWatch Logs, as an expression of Python, holds."""
    text = re.sub(r"\$\.(\w+) NOT EXISTS", r"'\1' not in event", pattern.strip("{} "))
    text = re.sub(r"\$\.(\w+) = \*", r"'\1' in event", text)
    text = re.sub(r"\$\.(\w+) = ", r"event.get('\1') == ", text)
    text = re.sub(r"\$\.(\w+) > ", r"(event.get('\1') or 0) > ", text)
    assert "$" not in text, pattern
    return bool(eval(text.replace("&&", "and").replace("||", "or"), {"event": event}))


@cache
def resources() -> dict[str, Any]:
    """Those of the telemetry stack."""
    found: dict[str, Any] = parse_template(stack.TEMPLATE.read_text())["Resources"]
    return found


def counted(event: dict[str, Any]) -> dict[str, int]:
    """How much an event adds to each metric."""
    found: dict[str, int] = {}
    for resource in resources().values():
        if resource["Type"] != "AWS::Logs::MetricFilter":
            continue
        if matches(resource["Properties"]["FilterPattern"], event):
            (how,) = resource["Properties"]["MetricTransformations"]
            value = how["MetricValue"]
            assert how["MetricName"] not in found, "one event, one filter of a metric"
            found[how["MetricName"]] = int(event[value[2:]] if value[0] == "$" else value)
    return found


def monitored(line: str, count: int | None = None) -> dict[str, Any]:
    """The event that gpu-xid writes of a kernel line."""
    (event,) = archive.events([line])
    return {**event, "count": count} if count else dict(event)


FATAL = LINE.format(79, "GPU has fallen off the bus.")
ADDS = {
    "a lost GPU": (FATAL, ["FatalEvents", "LostGpus", "EventsBySeverity", "EventsByXid"]),
    "a GPU lost without an Xid": (LOST, ["FatalEvents", "LostGpus", "EventsBySeverity"]),
    "a failed remapping": (
        LINE.format(64, "row remapping failed"),
        ["FatalEvents", "RowRemapFailures", "EventsBySeverity", "EventsByXid"],
    ),
    "an application's fault": (LINE.format(31, "Ch 1"), ["EventsBySeverity", "EventsByXid"]),
    "a switch": (SXID, ["FatalEvents", "EventsBySeverity", "EventsBySxid"]),
}


@pytest.mark.parametrize("count", [None, 7])
@pytest.mark.parametrize("what", ADDS)
def test_event_is_counted_by_its_metrics(what: str, count: int | None) -> None:
    """A folded storm counts as many events as it stands for."""
    line, metrics = ADDS[what]
    assert counted(monitored(line, count)) == dict.fromkeys(metrics, count or 1)


def test_lost_lines_are_counted() -> None:
    record = runtime_module("gpu_xid.event").record
    dropped = record("dropped", 0, "", 1, 2, severity="error", events=3)
    assert counted(dropped) == {"DroppedEvents": 1, "EventsBySeverity": 1}
    assert counted(record("overrun", 0, "", 1, 2)) == {"DroppedEvents": 1}
    assert counted(record("start", 0, "", 1, 2)) == {}
