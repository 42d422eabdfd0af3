"""What the agent refuses or silently drops in its configuration.

There are two layers, as in the agent: its JSON schema, and its translator, which is stricter in
places (measurement names, one retention and class per log group) and silent in others (it drops an
unknown log class or dimension without an error).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from kiln.base.errors import did_you_mean, nearest
from kiln.telemetry.facts import agent_schema, gpu_metric_names, telemetry_facts
from kiln.telemetry.go_pattern import go_pattern_problem
from kiln.telemetry.log_entries import log_problems

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """Something that the agent refuses (`error`) or does not do as written (`warning`).

    `path` are the keys of the wrong value in the configuration.
    """

    level: Literal["error", "warning"]
    rule: str
    message: str
    hint: str = ""
    path: Path = ()


def validate_agent_config(config: dict[str, Any]) -> list[Problem]:
    """All problems of an agent configuration: one file, or several after `merged`."""
    config = _whole_numbers(config)
    result = list(_schema(config))
    if all(problem.level == "warning" for problem in result):
        result += [
            *_gpu(config),
            *_measurements(config),
            *_dimensions(config),
            *_prometheus(config),
        ]
        result += [Problem(*log_problem) for log_problem in log_problems(config)]
    return result


def _whole_numbers(value: Any) -> Any:
    """Go's JSON has one kind of number: 90.0 is as good as 90."""
    if isinstance(value, dict):
        return {key: _whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _schema(config: dict[str, Any]) -> Iterator[Problem]:
    import jsonschema

    for error in jsonschema.Draft4Validator(agent_schema()).iter_errors(config):
        path = tuple(error.absolute_path)
        place = "/".join(map(str, path)) or "the top level"
        if error.validator == "uniqueItems" and path[-1:] == ("collect_list",):
            # The agent merges its files before it asks the schema, and then one of the two is gone.
            yield Problem(
                "warning",
                "cloudwatch-twice",
                f"{place}: an entry stands twice; the agent reads it once",
                "remove one of them",
                path,
            )
            continue
        yield Problem("error", "cloudwatch-schema", f"{place}: {error.message[:200]}", path=path)


def _gpu(config: dict[str, Any]) -> Iterator[Problem]:
    here = ("metrics", "metrics_collected")
    collected = config.get("metrics", {}).get("metrics_collected", {})
    if "nvidia_smi" in collected:
        yield Problem(
            "error",
            "cloudwatch-gpu-section",
            "metrics_collected has a section nvidia_smi, which the agent ignores",
            "rename it to nvidia_gpu",
            (*here, "nvidia_smi"),
        )
    units = [str(unit) for unit in telemetry_facts()["standard_units"]]
    prefix = telemetry_facts()["gpu_metrics"]["prefix"]
    for number, item in enumerate(collected.get("nvidia_gpu", {}).get("measurement", [])):
        path = (*here, "nvidia_gpu", "measurement", number)
        measurement = item.get("name", "") if isinstance(item, dict) else item
        name = measurement.strip().removeprefix(prefix)
        if name not in gpu_metric_names():
            yield Problem(
                "error",
                "cloudwatch-gpu-metric",
                f"nvidia_gpu has no measurement {measurement!r}: the agent would not start",
                did_you_mean(name, gpu_metric_names()),
                path,
            )
        if isinstance(item, dict) and item.get("unit", "None").strip() not in units:
            yield Problem(
                "error",
                "cloudwatch-unit",
                f"{measurement}: {item['unit']!r} is not a CloudWatch unit; CloudWatch refuses the "
                "data",
                did_you_mean(item["unit"], units),
                path,
            )


def _measurements(config: dict[str, Any]) -> Iterator[Problem]:
    """The other sections: the agent does not start for a name that it does not know. It drops an
    unknown EFA counter without a word."""
    collected = config.get("metrics", {}).get("metrics_collected", {})
    measurements: dict[str, list[str]] = telemetry_facts()["measurements"]
    counters = [counter["agent"] for counter in telemetry_facts()["efa"]["counters"]]
    for section, content in collected.items():
        parts = content if isinstance(content, list) else [content]
        for number, part in enumerate(parts):
            if not isinstance(part, dict) or (section not in measurements and section != "efa"):
                continue
            inner: Path = (number,) if isinstance(content, list) else ()
            for index, item in enumerate(part.get("measurement", [])):
                measurement = item.get("name", "") if isinstance(item, dict) else item
                path = ("metrics", "metrics_collected", section, *inner, "measurement", index)
                name = measurement.strip().removeprefix(section + "_")
                if section == "efa" and f"efa_{name}" not in counters:
                    yield Problem(
                        "warning",
                        "cloudwatch-efa-counter",
                        f"efa has no counter {measurement!r}: the agent drops it",
                        did_you_mean(measurement, counters),
                        path,
                    )
                elif section != "efa" and name not in measurements[section]:
                    yield Problem(
                        "error",
                        "cloudwatch-measurement",
                        f"{section} has no measurement {measurement!r}: the agent would not start",
                        did_you_mean(name, measurements[section]),
                        path,
                    )


def _dimensions(config: dict[str, Any]) -> Iterator[Problem]:
    dimensions: dict[str, str] = telemetry_facts()["append_dimensions"]
    for name, value in config.get("metrics", {}).get("append_dimensions", {}).items():
        if dimensions.get(name) != value:
            best = name if name in dimensions else nearest(name, dimensions)
            yield Problem(
                "warning",
                "cloudwatch-dimension",
                f"append_dimensions {name}: the agent silently drops {value!r}",
                f'write "{best}": "{dimensions[best]}"'
                if best
                else f"known: {', '.join(dimensions)}",
                ("metrics", "append_dimensions", name),
            )


def _prometheus(config: dict[str, Any]) -> Iterator[Problem]:
    collected = config.get("logs", {}).get("metrics_collected", {})
    section = collected.get("prometheus")
    # In a cluster the agent takes both names from it.
    if not isinstance(section, dict) or {"kubernetes", "ecs"} & set(collected):
        return
    path = ("logs", "metrics_collected", "prometheus")
    if not section.get("log_group_name"):
        yield Problem(
            "error",
            "cloudwatch-prometheus-log-group",
            "prometheus has no log_group_name: on EC2 the agent would not start",
            'write "log_group_name": "/ec2/prometheus" or a group of your own',
            path,
        )
    if not section.get("cluster_name"):
        yield Problem(
            "warning",
            "cloudwatch-prometheus-cluster",
            "prometheus has no cluster_name: the agent asks EC2 for the instance's tags at each "
            "start, and does not start where its role may not",
            f'write "cluster_name": "{telemetry_facts()["dcgm"]["cluster_name"]}", or allow '
            "ec2:DescribeTags",
            path,
        )
    for number, declared in enumerate(
        section.get("emf_processor", {}).get("metric_declaration", [])
    ):
        here = (*path, "emf_processor", "metric_declaration", number)
        patterns = [("label_matcher", declared.get("label_matcher", ""))]
        patterns += [("metric_selectors", text) for text in declared.get("metric_selectors", [])]
        for key, text in patterns:
            if reason := go_pattern_problem(text):
                yield Problem(
                    "error",
                    "cloudwatch-pattern",
                    f"{key} {text!r} is not a regular expression of Go: {reason}",
                    path=(*here, key),
                )
