"""The monthly cost of an instance's metrics: number of series times list prices."""

from __future__ import annotations

from typing import Any

from kiln.base.errors import KilnError
from kiln.facts import instance, table
from kiln.telemetry.settings import Telemetry, telemetry_facts

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
