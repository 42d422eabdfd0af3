"""Our settings that the agent refuses or does not follow as written, for `check`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kiln.telemetry.facts import agent_has, driver_branch, telemetry_facts
from kiln.telemetry.settings import Telemetry


@dataclass(frozen=True)
class Problem:
    """A setting that the agent rejects (`error`) or does not follow as written (`warning`)."""

    level: Literal["error", "warning"]
    rule: str
    message: str
    hint: str = ""


def agent_config_problems(
    settings: Telemetry,
    driver: str,
    agent_version: str | None,
    *,
    mig: bool = False,
    exporter: bool | None = None,
) -> list[Problem]:
    """All problems of the agent configuration on an image of these versions, for `check`.

    `exporter`: is dcgm-exporter on the image? None if unknown.
    """
    return [
        *versions(settings, driver, agent_version, mig=mig),
        *_exporter(settings, exporter),
    ]


def versions(
    settings: Telemetry, driver: str, agent_version: str | None, *, mig: bool = False
) -> list[Problem]:
    """Where driver, agent version and MIG do not support `settings`."""
    since = telemetry_facts()["agent"]["since"]
    result = []
    if (
        "power_draw" in settings.metrics
        and driver_branch(driver) >= telemetry_facts()["agent"]["power_moved_in_driver"]
        and not agent_has("power_draw_driver_570", agent_version)
    ):
        result.append(
            Problem(
                "error",
                "cloudwatch-power-draw",
                f"CloudWatch agent {agent_version} cannot read power_draw with driver {driver}",
                f"pin agent {since['power_draw_driver_570']} or newer, or remove power_draw",
            )
        )
    if settings.metrics and not agent_has("nvidia_gpu", agent_version):
        result.append(
            Problem(
                "error",
                "cloudwatch-nvidia-gpu",
                f"CloudWatch agent {agent_version} has no nvidia_gpu section and ignores it",
                f"pin agent {since['nvidia_gpu']} or newer",
            )
        )
    if settings.efa and not agent_has("efa", agent_version):
        result.append(
            Problem(
                "error",
                "cloudwatch-efa",
                f"CloudWatch agent {agent_version} has no efa section and ignores it",
                f"pin agent {since['efa']} or newer, or remove efa: true",
            )
        )
    if settings.log_class != "STANDARD" and not agent_has("log_group_class", agent_version):
        result.append(
            Problem(
                "error",
                "cloudwatch-log-class",
                f"CloudWatch agent {agent_version} cannot create a {settings.log_class} log group",
                f"pin agent {since['log_group_class']} or newer, or set log_class: STANDARD",
            )
        )
    if settings.log_class != telemetry_facts()["logs"]["class_with_metric_filters"]:
        result.append(
            Problem(
                "warning",
                "cloudwatch-log-class",
                f"a {settings.log_class} log group supports no metric filter: no alarm on an Xid",
                "set log_class: STANDARD",
            )
        )
    lost = [
        name
        for name in settings.metrics
        if name in telemetry_facts()["gpu_metrics"]["lost_with_mig"]
    ]
    if mig and lost and not settings.dcgm:
        result.append(
            Problem(
                "warning",
                "cloudwatch-mig",
                f"a GPU in MIG mode does not report {' and '.join(lost)} to the agent",
                "add dcgm: true, which measures each slice, or remove them",
            )
        )
    return result


def _exporter(settings: Telemetry, on_image: bool | None) -> Iterator[Problem]:
    if settings.dcgm and on_image is False:
        yield Problem(
            "error",
            "cloudwatch-dcgm",
            "telemetry asks for dcgm: true, but dcgm-exporter is not on the image: "
            "no DCGM metric would arrive",
            "add dcgm_exporter: <version> to the row or its stack, or remove dcgm: true",
        )
    if on_image and not settings.dcgm:
        yield Problem(
            "warning",
            "cloudwatch-dcgm",
            "dcgm-exporter is on the image, but nothing sends its metrics to CloudWatch",
            "add dcgm: true to telemetry, or scrape it with your own Prometheus agent",
        )
