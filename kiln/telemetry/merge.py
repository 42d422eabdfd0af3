"""The agent's files as one configuration: merged key by key, where two values are a clash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.telemetry.config_problems import Problem

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
    ("logs", "logs_collected", "windows_events"),
    ("logs", "logs_collected", "journald"),
    ("logs", "metrics_collected", "ecs"),
    ("logs", "metrics_collected", "kubernetes"),
    ("logs", "metrics_collected", "prometheus"),
}
# Lists to which each file adds its entries; a single entry needs no list.
_MERGED_LISTS = {"collect_list", "procstat", "jmx", "otlp"}


def merged(configs: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Any], list[Problem]]:
    """All files merged as the agent does it, in order of their names, and where they clash."""
    result: dict[str, Any] = {}
    clashes: list[Problem] = []
    for name in sorted(configs):
        _merge(configs[name], result, (), name, clashes)
    return result, clashes


def _merge(
    source: Mapping[str, Any],
    result: dict[str, Any],
    path: tuple[str, ...],
    name: str,
    clashes: list[Problem],
) -> None:
    for key, value in source.items():
        here = (*path, key)
        # A file with the wrong type here is judged by the schema, and must not end the merging.
        both = isinstance(value, dict) and isinstance(result.get(key, {}), dict)
        if both and here in _MERGED_MAPS:
            _merge(value, result.setdefault(key, {}), here, name, clashes)
        elif key not in result:
            once = key == "collect_list" and isinstance(value, list)
            result[key] = _each_once(value) if once else value
        elif key in _MERGED_LISTS and result[key] != value:
            result[key] = _each_once([*_listed(result[key]), *_listed(value)])
        elif result[key] != value:
            clashes.append(
                Problem(
                    "error",
                    "cloudwatch-merge",
                    f"{name}: {'/'.join(here)} differs from an earlier file; the agent does not "
                    "start",
                    "set the same value in every file, or set it in one",
                    here,
                )
            )


def _each_once(entries: list[Any]) -> list[Any]:
    return [entry for number, entry in enumerate(entries) if entry not in entries[:number]]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
