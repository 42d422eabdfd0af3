"""The `telemetry` block of a row or of `defaults` in `amis.yaml`, what the agent takes, and the
monthly cost of an instance's metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.versions import at_least
from kiln.facts import instance, table


def telemetry_facts() -> dict[str, Any]:
    """The facts of the agent (`cloudwatch.yaml`)."""
    return table("cloudwatch")


def agent_has(feature: str, agent_version: str | None) -> bool:
    """Whether an agent has a feature of `agent.since`. An unpinned agent is the newest."""
    since = telemetry_facts()["agent"]["since"][feature]
    return agent_version is None or at_least(agent_version, since)


def profile_metrics(profile: str) -> tuple[str, ...]:
    """The measurements of a named profile. `full` is all, `none` is events without metrics."""
    every = telemetry_facts()["gpu_metrics"]["names"]
    named = {**telemetry_facts()["profiles"], "full": every, "none": ()}
    if profile not in named:
        raise ValueError(f"unknown telemetry profile {profile!r}; {did_you_mean(profile, named)}")
    return tuple(named[profile])


class Telemetry(BaseModel):
    """What an image reports to CloudWatch. Validators raise ValueError with the nearest value."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    profile: str | tuple[str, ...] = "compute"
    """`compute`, `graphics`, `full`, `none` (events only), or your own list of measurements."""
    extra_metrics: tuple[str, ...] = ()
    """Measurements on top of a named profile, such as `temperature_gpu`."""
    interval: int = 60
    """Seconds between two measurements; with dcgm at most 300. Below 60 the GPU series are
    high-resolution."""
    namespace: str = "CWAgent"
    """CloudWatch namespace of all series."""
    dimensions: tuple[str, ...] = (
        "ImageId",
        "InstanceId",
        "InstanceType",
        "AutoScalingGroupName",
    )
    """Appended to every series; each is one of the four that the agent can look up."""
    aggregate_by: tuple[tuple[str, ...], ...] = (("InstanceId",),)
    """Dimension sets of the extra, aggregated series. Empty: none."""
    log_group: str = "/ec2/accelerated/accel-event-log"
    """Where Xid and health events go; the stream is the instance's id."""
    retention_days: int = 90
    """-1 keeps events forever."""
    log_class: str = "STANDARD"
    """Class of the log group; metric filters need `STANDARD`."""
    efa: bool = False
    """Counters of the EFA devices."""
    dcgm: bool = False
    """Utilization per MIG slice, ECC, remapped rows, encoder use, through dcgm-exporter."""

    host: tuple[str, ...] = ()
    """What the machine around the GPUs reports: of `mem`, `disk`, `diskio` and `ethtool`."""
    drop_original: bool = False
    """Send only the aggregated GPU series, not those of each GPU."""
    flush_interval: int = 60
    """Seconds between two calls of the agent to CloudWatch."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The GPU measurements, in order, without duplicates."""
        named = self.profile if isinstance(self.profile, tuple) else profile_metrics(self.profile)
        return tuple(dict.fromkeys((*named, *self.extra_metrics)))

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not value:
            raise ValueError("empty list of measurements; write `profile: none` instead")
        if isinstance(value, tuple):
            return cls._known_metrics(value)
        profile_metrics(value)
        return value

    @field_validator("extra_metrics")
    @classmethod
    def _known_metrics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _known("GPU measurement", value, telemetry_facts()["gpu_metrics"]["names"])

    @field_validator("dimensions")
    @classmethod
    def _known_dimensions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _once(_known("dimension", value, telemetry_facts()["append_dimensions"]))

    @field_validator("host")
    @classmethod
    def _known_sections(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _once(_known("section of host", value, telemetry_facts()["host"]))

    @field_validator("log_class")
    @classmethod
    def _known_class(cls, value: str) -> str:
        return _known("log class", (value,), telemetry_facts()["logs"]["classes"])[0]

    @field_validator("aggregate_by")
    @classmethod
    def _each_set_once(cls, value: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        _once(tuple(frozenset(_once(names)) for names in value))
        return value

    @field_validator("interval", "flush_interval")
    @classmethod
    def _interval_in_range(cls, value: int, info: ValidationInfo) -> int:
        limits = telemetry_facts()["interval"]
        if not limits["min"] <= value <= limits["max"]:
            raise ValueError(
                f"{info.field_name} {value} is out of range; the agent takes {limits['min']} to "
                f"{limits['max']} seconds, 60 is usual"
            )
        return value

    @field_validator("namespace")
    @classmethod
    def _own_namespace(cls, value: str) -> str:
        # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_concepts.html
        if value.lower().startswith("aws/"):
            raise ValueError(f"namespace {value!r} starts with AWS/, which only AWS may write to")
        if not re.fullmatch(r"[0-9A-Za-z._/#: -]{1,255}", value) or not value.strip():
            raise ValueError(
                "namespace must have 1 to 255 characters: letters, digits, spaces and ._-/#:, "
                "not spaces only"
            )
        return value

    @field_validator("log_group")
    @classmethod
    def _log_group_name(cls, value: str) -> str:
        # https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_CreateLogGroup.html
        if not re.fullmatch(r"[0-9A-Za-z._/#-]{1,512}", value):
            raise ValueError(
                f"log group {value!r} must have 1 to 512 characters: letters, digits and ._-/#"
            )
        if value.startswith("aws/"):
            raise ValueError(f"log group {value!r} starts with aws/, which CloudWatch Logs refuses")
        return value

    @field_validator("retention_days")
    @classmethod
    def _known_retention(cls, value: int) -> int:
        allowed = telemetry_facts()["logs"]["retention_days"]
        if value not in allowed:
            near = min((days for days in allowed if days > 0), key=lambda days: abs(days - value))
            raise ValueError(
                f"CloudWatch Logs has no retention of {value} days; the nearest is {near} "
                "(-1 keeps events forever)"
            )
        return value

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Telemetry:
        facts = telemetry_facts()
        limit = facts["dcgm"]["longest_interval"]
        if self.dcgm and self.interval > limit:
            raise ValueError(
                f"interval {self.interval} loses the DCGM counters: with dcgm: true use at most "
                f"{limit} seconds"
            )
        if self.drop_original and not self.aggregate_by:
            raise ValueError("drop_original sends nothing of a GPU without aggregate_by")
        there = {*self.dimensions, *facts["gpu_metrics"]["dimensions"]}
        there |= set(facts["efa"]["dimensions"]) if self.efa else set()
        for names in self.aggregate_by:
            _known("dimension of aggregate_by", names, there)
        return self


def _known(what: str, names: tuple[str, ...], choices: Iterable[str]) -> tuple[str, ...]:
    for name in names:
        if name not in choices:
            raise ValueError(f"unknown {what} {name!r}; {did_you_mean(name, choices)}")
    return names


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) != len(values):
        raise ValueError("a value is listed twice")
    return values


# CloudWatch's price list. Amounts are text, like all decimals.
_PRICES = "cloudwatch-prices"
_MOST = 1_000_000


def monthly_cost(instance_type: str, settings: Telemetry, *, instances: int = 1) -> dict[str, Any]:
    """Series, and US dollars per month, of a fleet of one instance type, before any free tier."""
    if not 1 <= instances <= _MOST:
        raise KilnError(f"{instances} instances have no cost", hint=f"give 1 to {_MOST}")
    kind = instance(instance_type)
    # A fractional type shows its slice as one GPU.
    series = metric_series(
        settings, gpus=max(kind.gpu_count, 1), efa_interfaces=kind.efa_interfaces
    )
    return {
        "instance_type": instance_type,
        "instances": instances,
        "profile": settings.profile,
        "series_per_instance": series,
        "usd_per_month": _tiered(series["total"] * instances),
        "price_table": {key: table(_PRICES)[key] for key in ("as_of", "region", "currency")},
    }


def metric_series(settings: Telemetry, *, gpus: int, efa_interfaces: int = 0) -> dict[str, int]:
    """Count an instance's CloudWatch metrics: one per name and set of dimensions."""
    facts = telemetry_facts()
    measured = len(settings.metrics)
    devices = efa_interfaces if settings.efa else 0
    counters = len(facts["efa"]["counters"]) if devices else 0
    gpu_only, efa_only = (set(facts[kind]["dimensions"]) for kind in ("gpu_metrics", "efa"))
    aggregates = host = 0
    # Of one disk and one interface each, since the facts know neither.
    for name in settings.host:
        section = facts["host"][name]
        host += len(section.get("measurement", section.get("metrics_include")))
        host += len(facts["host_instance_store"]) if name == "diskio" else 0
    sets = [set(names) for names in settings.aggregate_by]
    for names in sets:
        # A dimension set that names one of a GPU never matches an EFA series, nor the reverse.
        if not efa_only & names:
            aggregates += measured * (gpus if "index" in names else 1)
        if not gpu_only & names:
            aggregates += counters * (devices if efa_only & names else 1)
    counted = {
        "gpu": 0 if settings.drop_original else measured * gpus,
        "efa": counters * devices,
        "aggregates": aggregates,
        "dcgm": len(facts["dcgm"]["fields"]) * gpus if settings.dcgm else 0,
        "host": host
        * (1 + sum(not names & {"index", "name", "arch", *efa_only} for names in sets)),
    }
    return {**counted, "total": sum(counted.values())}


def cost_text(result: dict[str, Any]) -> str:
    """The cost as lines for a person."""
    series, prices = result["series_per_instance"], result["price_table"]
    kinds = ", ".join(f"{n} {kind}" for kind, n in series.items() if n and kind != "total")
    return (
        f"{result['instances']} x {result['instance_type']}, profile {result['profile']}\n"
        f"  series   {series['total']} per instance ({kinds or 'none'})\n"
        f"  metrics  ${result['usd_per_month']:,.2f} a month, before the free tier\n"
        f"Prices: {prices['region']}, list, as of {prices['as_of']}"
    )


def _tiered(amount: int) -> float:
    """US dollars for `amount` series; each tier's price applies only to the series inside it."""
    total, below = 0.0, 0
    for tier in table(_PRICES)["tiers"]:
        top = amount if tier["up_to"] is None else min(amount, tier["up_to"])
        total += max(0, top - below) * float(tier["usd"])
        below = max(below, top)
    return round(total, 2)
