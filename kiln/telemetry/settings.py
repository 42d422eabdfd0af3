"""The `telemetry` block of a row or of `defaults` in `amis.yaml`, what the agent takes, and the
monthly cost of an instance's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.versions import at_least
from kiln.base.vocabulary import Form
from kiln.facts import instance, table


def telemetry_facts() -> dict[str, Any]:
    """The facts of the agent (`cloudwatch.yaml`)."""
    return table("cloudwatch")


def agent_has(feature: str, agent_version: str | None) -> bool:
    """Return True if an agent has a feature of `agent.since`. An unpinned agent is the newest."""
    since = telemetry_facts()["agent"]["since"][feature]
    return agent_version is None or at_least(agent_version, since)


def profile_metrics(profile: str) -> tuple[str, ...]:
    """The measurements of a named profile. `full` is all, `none` is events without metrics."""
    every = telemetry_facts()["gpu_metrics"]["names"]
    named = {**telemetry_facts()["profiles"], "full": every, "none": ()}
    _known("telemetry profile", (profile,), named)
    return tuple(named[profile])


def _known(what: str, names: Iterable[Any], choices: Iterable[Any]) -> None:
    for name in names:
        if name not in choices:
            raise ValueError(f"unknown {what} {name!r}; {did_you_mean(name, choices)}")


def _among(what: str, choices: Callable[[dict[str, Any]], Iterable[Any]]) -> AfterValidator:
    """Require that a value, or each of a list once, is among these of the agent's facts."""

    def check(value: Any) -> Any:
        several = isinstance(value, tuple)
        _known(what, value if several else (value,), choices(telemetry_facts()))
        return _each_once(value) if several else value

    return AfterValidator(check)


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) != len(values):
        raise ValueError("a value is listed twice")
    return values


_MEASUREMENTS = _among("GPU measurement", lambda facts: facts["gpu_metrics"]["names"])


def _profile(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if not value:
        raise ValueError("empty list of measurements; write `profile: none` instead")
    if isinstance(value, str):
        profile_metrics(value)
    else:
        _known("GPU measurement", value, telemetry_facts()["gpu_metrics"]["names"])
    return value


def _sets_once(sets: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    _each_once(tuple(frozenset(_each_once(names)) for names in sets))
    return sets


def _interval(seconds: int) -> int:
    limits = telemetry_facts()["interval"]
    if not limits["min"] <= seconds <= limits["max"]:
        raise ValueError(
            f"interval {seconds} is out of range; the agent takes {limits['min']} to "
            f"{limits['max']} seconds, 60 is usual"
        )
    return seconds


# https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_concepts.html
_NAMESPACE = Form(
    r"(?![Aa][Ww][Ss]/)(?=.*\S)[0-9A-Za-z._/#: -]+",
    "a namespace of letters, digits, spaces and ._-/#:, which does not begin with AWS/",
    longest=255,
)
# https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_CreateLogGroup.html
_LOG_GROUP = Form(
    r"(?!aws/)[0-9A-Za-z._/#-]+",
    "a log group of letters, digits and ._-/#, which does not begin with aws/",
    longest=512,
)
_Interval = Annotated[int, AfterValidator(_interval)]


class Telemetry(BaseModel):
    """Telemetry of an image to CloudWatch."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    profile: Annotated[str | tuple[str, ...], AfterValidator(_profile)] = "compute"
    """`compute`, `graphics`, `full` or `none` (events only); in amis.yaml also a list of
    measurements."""
    extra_metrics: Annotated[tuple[str, ...], _MEASUREMENTS] = ()
    """Measurements on top of a named profile, such as `temperature_gpu`."""
    interval: _Interval = 60
    """Seconds between two measurements, at most 300 with `dcgm`. Below 60 the GPU series are
    high-resolution."""
    namespace: Annotated[str, _NAMESPACE] = "CWAgent"
    """CloudWatch namespace of all series."""
    dimensions: Annotated[
        tuple[str, ...], _among("dimension", lambda facts: facts["append_dimensions"])
    ] = ("ImageId", "InstanceId", "InstanceType", "AutoScalingGroupName")
    """Appended to every series; the agent can look up no others than these four."""
    aggregate_by: Annotated[tuple[tuple[str, ...], ...], AfterValidator(_sets_once)] = (
        ("InstanceId",),
    )
    """Dimension sets of extra series over all GPUs of an instance; empty: none."""
    log_group: Annotated[str, _LOG_GROUP] = "/ec2/accelerated/accel-event-log"
    """Log group of Xid and health events; the stream is the instance's id."""
    retention_days: Annotated[
        int, _among("retention", lambda facts: facts["logs"]["retention_days"])
    ] = 90
    """A retention that CloudWatch Logs has; -1 keeps events forever."""
    log_class: Annotated[str, _among("log class", lambda facts: facts["logs"]["classes"])] = (
        "STANDARD"
    )
    """Class of the log group: `INFREQUENT_ACCESS` halves the price and allows no metric
    filters."""
    efa: bool = False
    """All 22 counters of the EFA devices; `aggregate_by` may then name `device`, `port` and
    `eniId`."""
    dcgm: bool = False
    """Use per MIG slice, ECC, remapped rows, encoder use, temperatures, power, PCIe replays, NVLink
    errors and throttle reasons, through dcgm-exporter."""
    host: Annotated[tuple[str, ...], _among("section of host", lambda facts: facts["host"])] = ()
    """Metrics of the machine around the GPUs: `mem`, `disk`, `diskio` (with local NVMe disks from
    agent 1.300059 on) and `ethtool` (ENA's allowances)."""
    drop_original: bool = False
    """Send only the series of `aggregate_by`, none per GPU."""
    flush_interval: _Interval = 60
    """Seconds between two calls of the agent to CloudWatch."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The GPU measurements, in order, without duplicates."""
        named = self.profile if isinstance(self.profile, tuple) else profile_metrics(self.profile)
        return tuple(dict.fromkeys((*named, *self.extra_metrics)))

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


# CloudWatch's price list. Amounts are text, like all decimals.
_PRICES = "cloudwatch-prices"


def monthly_cost(instance_type: str, settings: Telemetry, *, instances: int = 1) -> dict[str, Any]:
    """Series, and US dollars per month, of a fleet of one instance type, before any free tier."""
    if instances < 1:
        raise KilnError(f"{instances} instances have no cost", hint="give 1 or more")
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
        f"{result['instances']} × {result['instance_type']}, profile {result['profile']}\n"
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
