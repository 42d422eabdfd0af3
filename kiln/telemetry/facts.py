"""The agent's facts from `kiln/facts/knowledge/`, read on first use."""

from __future__ import annotations

import re
from typing import Any

from kiln.facts import table


def telemetry_facts() -> dict[str, Any]:
    """What the agent accepts (`cloudwatch.yaml`)."""
    return table("cloudwatch")


def prices() -> dict[str, Any]:
    """CloudWatch's price list (`cloudwatch-prices.yaml`). Amounts are text, like all decimals."""
    return table("cloudwatch-prices")


def gpu_metric_names() -> tuple[str, ...]:
    """The measurements that the agent's translator knows for a GPU."""
    return tuple(telemetry_facts()["gpu_metrics"]["names"])


def profile_names() -> tuple[str, ...]:
    """The valid names for `telemetry.profile`."""
    return (*telemetry_facts()["profiles"], "full", "none")


def profile_metrics(profile: str) -> tuple[str, ...]:
    """The measurements of a named profile. `full` is all, `none` is events without metrics."""
    if profile == "full":
        return gpu_metric_names()
    if profile == "none":
        return ()
    return tuple(telemetry_facts()["profiles"][profile])


def version_parts(text: str) -> tuple[int, ...]:
    """`1.300056.0b1123` as numbers to compare: (1, 300056, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def agent_has(feature: str, agent_version: str | None) -> bool:
    """Does an agent have a feature of `agent.since`? An unpinned agent is the newest."""
    return agent_version is None or version_parts(agent_version) >= version_parts(
        telemetry_facts()["agent"]["since"][feature]
    )


def driver_branch(driver: str) -> int:
    """570 for `570.172.08`; 0 for text without a number, which the matrix's schema refuses."""
    numbers = version_parts(driver)
    return numbers[0] if numbers else 0
