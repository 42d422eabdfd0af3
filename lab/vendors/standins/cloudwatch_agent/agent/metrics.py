"""Measurements as CloudWatch gets them: dimensions, aggregated series, batches.

github:aws/amazon-cloudwatch-agent plugins/outputs/cloudwatch/{cloudwatch,convert_otel}.go,
plugins/processors/ec2tagger/ec2tagger.go, internal/cloudwatch/unit.go
@ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import time

from .aws import AwsError

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Dict

    from .aws import Caller
    from .gpu import Gpu
    from .plan import Plan

    Datum = Dict[str, Any]

MOST_DIMENSIONS = 30
MOST_DATUMS = 1000
_SIZES = ["Bytes", "Kilobytes", "Megabytes", "Gigabytes", "Terabytes"]
_SIZES += ["Bits", "Kilobits", "Megabits", "Gigabits", "Terabits"]
_UNITS = ["Seconds", "Microseconds", "Milliseconds", "Percent", "Count", "Count/Second", "None"]
_UNITS += [*_SIZES, *(f"{size}/Second" for size in _SIZES)]
_KNOWN = {unit.lower(): unit for unit in _UNITS}
_LARGEST = 2.0**360


def datums(plan: Plan, gpus: list[Gpu], appended: dict[str, str], hostname: str) -> list[Datum]:
    """The datums of one reading. `appended` has a value for each appended dimension."""
    made: list[Datum] = []
    own = plan.gpu
    if own is None:
        return made
    for dimensions, fields, moment in gpus:
        whole = dict(dimensions, **own.appended)
        for name in plan.appended:
            if appended.get(name):
                whole.setdefault(name, appended[name])
        if plan.host and not plan.tagged:
            whole["host"] = hostname
        for field, value in fields.items():
            called = own.names.get(field)
            if called is None or abs(value) > _LARGEST:
                continue
            unit = _KNOWN.get(own.units[field].lower(), "None")
            for place, chosen in enumerate(rolled_up(whole, plan.rollups)):
                if place == 0 and called in own.dropped:
                    continue
                made.append(
                    {
                        "MetricName": called,
                        "Dimensions": chosen,
                        "Timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)),
                        "Unit": unit,
                        "Value": float(value),
                        "StorageResolution": 1 if own.high_resolution else 60,
                    }
                )
    return made


def rolled_up(dimensions: dict[str, str], sets: list[list[str]]) -> list[list[Datum]]:
    """The dimensions of the series itself, then those of each aggregated series."""
    ordered = sorted(dimensions, key=lambda name: (name != "host", name))[:MOST_DIMENSIONS]
    dimension_sets = [
        [{"Name": name, "Value": dimensions[name]} for name in ordered if dimensions[name]]
    ]
    for names in sets:
        if len(names) < len(dimension_sets[0]) and all(dimensions.get(name) for name in names):
            dimension_sets.append([{"Name": name, "Value": dimensions[name]} for name in names])
    return dimension_sets


class Outbox:
    """Datums that wait for force_flush_interval."""

    def __init__(self, plan: Plan, caller: Caller, say: Callable[[str], None]) -> None:
        self.plan, self.caller, self.say = plan, caller, say
        self.waiting: list[Datum] = []
        self.since, self.failed = 0.0, 0

    def add(self, more: list[Datum], now: float) -> None:
        """Take datums."""
        if not self.waiting:
            self.since = now
        self.waiting += more

    def send(self, now: float) -> None:
        """Send when it is time; what CloudWatch refuses is lost after five attempts."""
        if not self.waiting or now - self.since < self.plan.metrics_flush:
            return
        while self.waiting:
            try:
                self.caller.metrics(self.plan.namespace, self.waiting[:MOST_DATUMS])
            except (AwsError, OSError) as error:
                self.failed += 1
                self.say(f"E! cloudwatch: WriteToCloudWatch failure, err:  {error}")
                if self.failed < 5:
                    self.since = now
                    return
            del self.waiting[:MOST_DATUMS]
            self.failed = 0
