"""The monthly cost of an instance's metrics: number of series times list prices."""

from __future__ import annotations

import math
from typing import Any

from kiln.base.errors import KilnError
from kiln.facts import instance
from kiln.telemetry.facts import prices, telemetry_facts
from kiln.telemetry.settings import Telemetry

# Below it, a series is of high resolution.
_MINUTE = 60


def monthly_cost(
    instance_type: str, settings: Telemetry, *, instances: int = 1, mig_slices: int = 0
) -> dict[str, Any]:
    """Series, and US dollars per month, of a fleet of one instance type.

    `mig_slices` is the number of slices on all GPUs of one instance; 0 without MIG. Raises
    KilnError (exit status 2) for an unknown instance type, and for less than one instance.
    """
    if instances < 1:
        raise KilnError(f"{instances} instances have no cost", hint="give a number from 1 on")

    kind = instance(instance_type)
    counted = metric_series(
        settings,
        gpus=max(kind.gpu_count, 1),  # a fractional type shows its slice as one GPU
        efa_interfaces=kind.efa_interfaces,
        mig_slices=mig_slices,
    )
    return {
        "instance_type": instance_type,
        "gpus": kind.gpu_count,
        "instances": instances,
        "profile": settings.profile,
        "interval": settings.interval,
        "high_resolution": settings.interval
        < telemetry_facts()["interval"]["high_resolution_below"],
        "series_per_instance": counted,
        "usd_per_month": dollars(settings, counted, instances=instances),
        "price_table": {key: prices()[key] for key in ("as_of", "region", "currency")},
    }


def metric_series(
    settings: Telemetry, *, gpus: int, efa_interfaces: int = 0, mig_slices: int = 0
) -> dict[str, int]:
    """The number of CloudWatch metrics (one per name and set of dimensions) of one instance.

    In MIG mode two GPU measurements are missing, and dcgm-exporter reports slices, not GPUs.
    """
    lost = telemetry_facts()["gpu_metrics"]["lost_with_mig"] if mig_slices else ()
    measured = sum(name not in lost for name in settings.metrics)
    devices = efa_interfaces if settings.efa else 0
    counters = len(telemetry_facts()["efa"]["counters"]) if devices else 0
    gpu_only = set(telemetry_facts()["gpu_metrics"]["dimensions"])
    efa_only = set(telemetry_facts()["efa"]["dimensions"])
    aggregates = 0
    for names in settings.aggregate_by:
        # A dimension set that names one of a GPU never matches an EFA series, nor the reverse.
        if not efa_only & set(names):
            aggregates += measured * (gpus if "index" in names else 1)
        if not gpu_only & set(names):
            aggregates += counters * (devices if efa_only & set(names) else 1)
    counted = {
        "gpu": 0 if settings.drop_original else measured * gpus,
        "efa": counters * devices,
        "aggregates": aggregates,
        "dcgm": len(telemetry_facts()["dcgm"]["fields"]) * _exported(settings, gpus, mig_slices),
    }
    if settings.host:
        counted["host"] = _host_series(settings)
    return {**counted, "total": sum(counted.values())}


def dollars(
    settings: Telemetry, counted: dict[str, int], *, instances: int = 1
) -> dict[str, float]:
    """US dollars per month of `instances` with `counted` series each, before any free tier."""
    month = prices()["hours_per_month"] * 3600
    requests = prices()["api_requests"]
    by_agent = counted["total"] - counted["dcgm"]
    per_flush = by_agent * max(1, settings.flush_interval // settings.interval)
    calls = math.ceil(per_flush / requests["metrics_per_request"])
    calls *= instances * month / max(settings.flush_interval, settings.interval)
    events = counted["dcgm"] / len(telemetry_facts()["dcgm"]["fields"]) * instances
    gigabytes = events * month / settings.interval * prices()["logs"]["emf_event_bytes"] / 1e9
    parts = {
        "metrics": _tiered(counted["total"] * instances),
        "api_requests": calls / 1000 * float(requests["usd_per_1000"]),
        "dcgm_logs": gigabytes * float(prices()["logs"]["ingest_usd_per_gb"]["STANDARD"]),
    }
    rounded = {name: round(amount, 2) for name, amount in parts.items()}
    return {**rounded, "total": round(sum(parts.values()), 2)}


def cost_text(result: dict[str, Any]) -> str:
    """The answer of `cost` for a person."""
    counted, usd, table = (
        result[key] for key in ("series_per_instance", "usd_per_month", "price_table")
    )
    profile = result["profile"]
    named = profile if isinstance(profile, str) else f"{len(profile)} measurements"
    kinds = ", ".join(f"{n} {kind}" for kind, n in counted.items() if n and kind != "total")
    fleet = f"{result['instances']} x " if result["instances"] > 1 else ""
    lines = [
        f"{fleet}{result['instance_type']}, {result['gpus']} GPUs, profile {named}, "
        f"every {result['interval']} s",
        f"  series       {counted['total']} per instance ({kinds or 'none'})",
        f"  metrics      ${usd['metrics']:,.2f} a month",
        f"  API requests ${usd['api_requests']:,.2f} a month",
    ]
    if usd["dcgm_logs"]:
        lines.append(
            f"  DCGM logs    ${usd['dcgm_logs']:,.2f} a month (size of an event estimated)"
        )
    lines.append(f"  total        ${usd['total']:,.2f} a month, before the free tier")
    if result["high_resolution"]:
        alarms = prices()["alarms"]
        lines.append(
            f"  high resolution (below {_MINUTE} s): the price of a series stays, an alarm "
            f"on one costs ${alarms['high_resolution_usd']} instead of "
            f"${alarms['standard_usd']}"
        )
    lines.append(f"Prices: {table['region']}, list, as of {table['as_of']}")
    return "\n".join(lines)


def _host_series(settings: Telemetry) -> int:
    """Of one disk and one interface each, since the facts know neither; with their aggregates."""
    sections = telemetry_facts()["host"]
    counted = 0
    for name in settings.host:
        counted += len(sections[name].get("measurement", sections[name].get("metrics_include")))
        counted += len(telemetry_facts()["host_instance_store"]) if name == "diskio" else 0
    devices = {"index", "name", "arch", *telemetry_facts()["efa"]["dimensions"]}
    return counted * (1 + sum(not devices & set(names) for names in settings.aggregate_by))


def _exported(settings: Telemetry, gpus: int, mig_slices: int) -> int:
    return (mig_slices or gpus) if settings.dcgm else 0


def _tiered(amount: int) -> float:
    """US dollars for `amount` series; each tier's price applies only to the series inside it."""
    total, below = 0.0, 0
    for tier in prices()["custom_metrics"]["tiers"]:
        top = amount if tier["up_to"] is None else min(amount, tier["up_to"])
        total += max(0, top - below) * float(tier["usd"])
        below = max(below, top)
    return total
