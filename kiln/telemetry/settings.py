"""The `telemetry` block of a row or of `defaults` in `amis.yaml`."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from kiln.base.errors import did_you_mean
from kiln.telemetry.facts import gpu_metric_names, profile_metrics, profile_names, telemetry_facts


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
        if isinstance(value, tuple):
            if not value:
                raise ValueError("empty list of measurements; write `profile: none` instead")
            return _known_metrics(value)
        if value not in profile_names():
            raise ValueError(
                f"unknown telemetry profile {value!r}; {did_you_mean(value, profile_names())}"
            )
        return value

    @field_validator("extra_metrics")
    @classmethod
    def _known_extra(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _known_metrics(value)

    @field_validator("interval")
    @classmethod
    def _interval_in_range(cls, value: int) -> int:
        limits = telemetry_facts()["interval"]
        if not limits["min"] <= value <= limits["max"]:
            raise ValueError(
                f"interval {value} is out of range; the agent takes {limits['min']} to "
                f"{limits['max']} seconds, 60 is usual"
            )
        return value

    @field_validator("namespace")
    @classmethod
    def _own_namespace(cls, value: str) -> str:
        if value.lower().startswith("aws/"):
            raise ValueError(
                f"namespace {value!r} starts with AWS/, which only AWS may write to; "
                "use your own, such as CWAgent"
            )
        # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_concepts.html
        if not re.fullmatch(r"[0-9A-Za-z._/#: -]{1,255}", value) or not value.strip():
            raise ValueError(
                "namespace must have 1 to 255 characters: letters, digits, spaces and ._-/#:, "
                "not spaces only"
            )
        return value

    @field_validator("dimensions")
    @classmethod
    def _known_dimensions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        dimensions = telemetry_facts()["append_dimensions"]
        for name in value:
            if name not in dimensions:
                raise ValueError(
                    f"the agent cannot append dimension {name!r}; {did_you_mean(name, dimensions)}"
                )
        if len(set(value)) != len(value):
            raise ValueError("a dimension is listed twice")
        return value

    @field_validator("host")
    @classmethod
    def _known_sections(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        sections = telemetry_facts()["host"]
        for name in value:
            if name not in sections:
                raise ValueError(
                    f"unknown section {name!r} of host; {did_you_mean(name, sections)}"
                )
        if len(set(value)) != len(value):
            raise ValueError("a section of host is listed twice")
        return value

    @field_validator("flush_interval")
    @classmethod
    def _flush_in_range(cls, value: int) -> int:
        limits = telemetry_facts()["interval"]
        if not limits["min"] <= value <= limits["max"]:
            raise ValueError(
                f"flush_interval {value} is out of range; the agent takes {limits['min']} to "
                f"{limits['max']} seconds, 60 is usual"
            )
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

    @field_validator("log_class")
    @classmethod
    def _known_class(cls, value: str) -> str:
        classes = telemetry_facts()["logs"]["classes"]
        if value not in classes:
            raise ValueError(f"unknown log class {value!r}; {did_you_mean(value, classes)}")
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

    @field_validator("aggregate_by")
    @classmethod
    def _each_set_once(cls, value: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        sets = [frozenset(names) for names in value]
        if len(set(sets)) != len(sets) or any(
            len(names) != len(each) for names, each in zip(value, sets, strict=True)
        ):
            raise ValueError("aggregate_by lists a dimension or a set of dimensions twice")
        return value

    @model_validator(mode="after")
    def _interval_of_dcgm(self) -> Telemetry:
        limit = telemetry_facts()["dcgm"]["longest_interval"]
        if self.dcgm and self.interval > limit:
            raise ValueError(
                f"interval {self.interval} loses the DCGM counters: with dcgm: true use at most "
                f"{limit} seconds"
            )
        return self

    @model_validator(mode="after")
    def _something_is_left(self) -> Telemetry:
        if self.drop_original and not self.aggregate_by:
            raise ValueError("drop_original sends nothing of a GPU without aggregate_by")
        return self

    @model_validator(mode="after")
    def _aggregates_are_dimensions(self) -> Telemetry:
        dimensions = {*self.dimensions, *telemetry_facts()["gpu_metrics"]["dimensions"]}
        if self.efa:
            dimensions |= set(telemetry_facts()["efa"]["dimensions"])
        for name in (name for names in self.aggregate_by for name in names):
            if name not in dimensions:
                raise ValueError(
                    f"aggregate_by names {name!r}, which no series has; "
                    f"{did_you_mean(name, dimensions)}"
                )
        return self


def _known_metrics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in gpu_metric_names():
            raise ValueError(
                f"the agent has no GPU measurement {name!r}; "
                f"{did_you_mean(name, gpu_metric_names())}"
            )
    return names
