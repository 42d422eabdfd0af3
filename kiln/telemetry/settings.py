"""The `telemetry` block of a row or of `defaults` in `amis.yaml`, and what the agent takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from kiln.base.errors import did_you_mean
from kiln.base.versions import at_least
from kiln.facts import table


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
