"""Measurements as CloudWatch gets them: dimensions, aggregated series, batches.

github:aws/amazon-cloudwatch-agent plugins/outputs/cloudwatch/{cloudwatch,convert_otel}.go,
plugins/processors/ec2tagger/ec2tagger.go @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
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

MOST_DATUMS = 1000


def datums(plan: Plan, gpus: list[Gpu], appended: dict[str, str], hostname: str) -> list[Datum]:
    """The datums of one reading. `appended` has a value for each appended dimension."""
    made: list[Datum] = []
    for dimensions, fields, moment in gpus:
        whole = dict(dimensions)
        for name in plan.appended:
            if appended.get(name):
                whole.setdefault(name, appended[name])
        if plan.host:
            whole["host"] = hostname
        for field, value in fields.items():
            if field not in plan.units:
                continue
            for place, chosen in enumerate(rolled_up(whole, plan.rollups)):
                if place == 0 and field in plan.dropped:
                    continue
                made.append({
                    "MetricName": "nvidia_smi_" + field,
                    "Dimensions": chosen,
                    "Timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)),
                    "Unit": plan.units[field],
                    "Value": float(value),
                    "StorageResolution": 1 if plan.interval < 60 else 60,
                })  # fmt: skip
    return made


def rolled_up(dimensions: dict[str, str], sets: list[list[str]]) -> list[list[Datum]]:
    """The dimensions of the series itself, then those of each aggregated series."""
    chosen = [sorted(dimensions, key=lambda name: (name != "host", name))]
    chosen += [s for s in sets if len(s) < len(chosen[0]) and all(dimensions.get(n) for n in s)]
    return [[{"Name": n, "Value": dimensions[n]} for n in names] for names in chosen]


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
