"""List prices of a build: `kiln/facts/knowledge/ec2-prices.yaml`, on demand, us-east-1."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.facts import table

# The stages of a record during which an instance runs.
_BAKING = ("packer build",)
_VERIFYING = ("boot the AMI", "checks")


def run_usd(
    seconds: Mapping[str, float], instance_type: str | None, verify_instance_type: str | None
) -> float | None:
    """US dollars of a run's instances; `seconds` by stage. None if a price is not known."""
    parts = [(instance_type, _BAKING), (verify_instance_type, _VERIFYING)]
    total = 0.0
    for name, stages in parts:
        spent = sum(seconds.get(stage, 0) for stage in stages)
        if name and spent:
            hourly = table("ec2-prices")["instances"]["hourly"].get(name)
            if hourly is None:
                return None
            total += float(hourly) * spent / 3600
    return round(total, 4)


def estimate(instance_type: str, verify_instance_type: str, gib: float) -> str:
    """Estimate a build's cost in one line; `gib`: size of the AMI's volume."""
    prices = table("ec2-prices")
    expected = prices["expected_seconds"]
    usd = run_usd(
        {"packer build": float(expected["bake"]), "checks": float(expected["verify"])},
        instance_type,
        verify_instance_type,
    )
    month = gib * float(prices["snapshots"]["usd_per_gb_month"])
    instances = "unknown price" if usd is None else f"about ${usd:,.2f}"
    return (
        f"{instances} for instances, at most ${month:,.2f} a month per region for the snapshot "
        f"(us-east-1 list prices of {prices['instances']['as_of']})"
    )
