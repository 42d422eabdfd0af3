"""What the agent refuses or silently drops in its configuration.

There are two layers, as in the agent: its JSON schema, and its translator, which is stricter in
places (measurement names, one retention and class per log group) and silent in others (it drops an
unknown log class or dimension without an error).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kiln.base.errors import did_you_mean, nearest
from kiln.telemetry.agent import agent_files
from kiln.telemetry.facts import (
    agent_has,
    agent_schema,
    driver_branch,
    gpu_metric_names,
    telemetry_facts,
)
from kiln.telemetry.settings import Telemetry

# Maps that the agent merges key by key; everything below them must be the same in every file.
_MERGED_MAPS = {
    (),
    ("agent",),
    ("metrics",),
    ("metrics", "metrics_collected"),
    ("logs",),
    ("logs", "logs_collected"),
    ("logs", "metrics_collected"),
    ("logs", "logs_collected", "files"),
    ("logs", "logs_collected", "journald"),
}


@dataclass(frozen=True)
class Problem:
    """Something that the agent refuses (`error`) or does not do as written (`warning`)."""

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
    texts = agent_files(settings, driver, agent_version)
    files = {name: json.loads(text) for name, text in texts.items() if name.endswith(".json")}
    config, clashes = merged(files)
    return [
        *clashes,
        *validate_agent_config(config),
        *versions(settings, driver, agent_version, mig=mig),
        *_exporter(settings, exporter),
    ]


def validate_agent_config(config: dict[str, Any]) -> list[Problem]:
    """All problems of an agent configuration: one file, or several after `merged`."""
    result = list(_schema(config))
    if not any(problem.rule == "cloudwatch-schema" for problem in result):
        result += [*_gpu(config), *_dimensions(config), *_log_groups(config), *_timestamps(config)]
    return result


def merged(configs: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Any], list[Problem]]:
    """All files merged as the agent does it, in order of their names, and where they clash."""
    result: dict[str, Any] = {}
    clashes: list[Problem] = []
    for name in sorted(configs):
        _merge(configs[name], result, (), name, clashes)
    return result, clashes


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


def _schema(config: dict[str, Any]) -> Iterator[Problem]:
    import jsonschema

    for error in jsonschema.Draft4Validator(agent_schema()).iter_errors(config):
        place = "/".join(str(part) for part in error.absolute_path) or "the top level"
        yield Problem("error", "cloudwatch-schema", f"{place}: {error.message[:200]}")


def _gpu(config: dict[str, Any]) -> Iterator[Problem]:
    collected = config.get("metrics", {}).get("metrics_collected", {})
    if "nvidia_smi" in collected:
        yield Problem(
            "error",
            "cloudwatch-gpu-section",
            "metrics_collected has a section nvidia_smi, which the agent ignores",
            "rename it to nvidia_gpu",
        )
    units = [str(unit) for unit in telemetry_facts()["standard_units"]]
    prefix = telemetry_facts()["gpu_metrics"]["prefix"]
    for item in collected.get("nvidia_gpu", {}).get("measurement", []):
        given = item.get("name", "") if isinstance(item, dict) else item
        name = given.strip().removeprefix(prefix)
        if name not in gpu_metric_names():
            yield Problem(
                "error",
                "cloudwatch-gpu-metric",
                f"nvidia_gpu has no measurement {given!r}: the agent would not start",
                did_you_mean(name, gpu_metric_names()),
            )
        if isinstance(item, dict) and item.get("unit", "None").strip() not in units:
            yield Problem(
                "error",
                "cloudwatch-unit",
                f"{given}: {item['unit']!r} is not a CloudWatch unit; CloudWatch refuses the data",
                did_you_mean(item["unit"], units),
            )


def _dimensions(config: dict[str, Any]) -> Iterator[Problem]:
    known: dict[str, str] = telemetry_facts()["append_dimensions"]
    for name, value in config.get("metrics", {}).get("append_dimensions", {}).items():
        if known.get(name) != value:
            best = name if name in known else nearest(name, known)
            yield Problem(
                "error",
                "cloudwatch-dimension",
                f"append_dimensions {name}: the agent silently drops {value!r}",
                f'write "{best}": "{known[best]}"' if best else f"known: {', '.join(known)}",
            )


def _log_groups(config: dict[str, Any]) -> Iterator[Problem]:
    logs = telemetry_facts()["logs"]
    values: dict[tuple[str, str], Any] = {}
    for entry in _log_entries(config):
        group = entry.get("log_group_name", "")
        log_class = entry.get("log_group_class")
        if log_class is not None and log_class.upper() not in logs["classes"]:
            yield Problem(
                "error",
                "cloudwatch-log-class",
                f"{group}: the agent drops the unknown log_group_class {log_class!r}",
                did_you_mean(log_class, logs["classes"]),
            )
            log_class = None
        retention = entry.get("retention_in_days")
        settings = {
            "retention_in_days": retention if retention and retention > 0 else None,
            "log_group_class": log_class.upper() if log_class else None,
        }
        for key, value in settings.items():
            # The agent compares group names case-insensitively.
            first = values.setdefault((group.lower(), key), value) if value else value
            if first != value:
                yield Problem(
                    "error",
                    f"cloudwatch-one-{key.replace('_', '-')}",
                    f"log group {group} has two values of {key}: {first} and {value}",
                    f"use one value in both places, such as {first}",
                )


def _timestamps(config: dict[str, Any]) -> Iterator[Problem]:
    known = telemetry_facts()["logs"]["timestamp_codes"]
    for entry in _log_entries(config):
        for code in re.findall(r"%-?.", entry.get("timestamp_format", "")):
            if code not in known:
                yield Problem(
                    "error",
                    "cloudwatch-timestamp",
                    f"{entry['file_path']}: the agent does not translate {code} in "
                    f"{entry['timestamp_format']!r}",
                    f"known: {' '.join(known)}",
                )


def _log_entries(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for source in config.get("logs", {}).get("logs_collected", {}).values():
        if isinstance(source, dict):
            yield from source.get("collect_list", [])


def _merge(
    source: Mapping[str, Any],
    result: dict[str, Any],
    path: tuple[str, ...],
    name: str,
    clashes: list[Problem],
) -> None:
    for key, value in source.items():
        here = (*path, key)
        if key not in result and here not in _MERGED_MAPS:
            result[key] = list(value) if isinstance(value, list) else value
        elif here in _MERGED_MAPS and isinstance(value, dict):
            _merge(value, result.setdefault(key, {}), here, name, clashes)
        elif key == "collect_list":
            result[key] += [entry for entry in value if entry not in result[key]]
        elif result[key] != value:
            clashes.append(
                Problem(
                    "error",
                    "cloudwatch-merge",
                    f"{name}: {'/'.join(here)} differs from an earlier file; the agent does not "
                    "start",
                    "set the same value in every file, or set it in one",
                )
            )
