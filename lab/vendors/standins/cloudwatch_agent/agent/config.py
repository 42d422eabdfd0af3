"""The agent's JSON files: read, merged and refused as its translator does.

github:aws/amazon-cloudwatch-agent translator/ @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import glob
import json

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

SECTIONS = {"agent", "metrics", "logs", "traces", "csm", "opentelemetry"}
NO_FILES = 99  # the translator's exit status when there is nothing to translate


class ConfigError(Exception):
    """A configuration that the agent refuses."""


def load(etc: str) -> dict[str, Any] | None:
    """The merged configuration below `etc`; None without a file. Raises ConfigError."""
    files = glob.glob(etc + "/amazon-cloudwatch-agent.json")
    files += sorted(glob.glob(etc + "/amazon-cloudwatch-agent.d/*"))
    parts = [read(file) for file in files if not file.endswith(".tmp")]
    return merged(parts) if parts else None


def read(file: str) -> dict[str, Any]:
    """A file's content. Raises ConfigError."""
    try:
        with open(file) as stream:
            part: dict[str, Any] = json.load(stream)
    except ValueError as error:
        raise ConfigError(f"Can not parse {file}: {error}") from None
    unknown = sorted(set(part) - SECTIONS)
    if unknown:
        raise ConfigError(
            f"Under path : / | Error : Additional property {unknown[0]} is not allowed"
        )
    return part


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One configuration of several. Raises ConfigError where two say different things."""
    whole: dict[str, Any] = {}
    for part in parts:
        _merge(whole, part, "")
    _check_log_groups(whole)
    return whole


def _check_log_groups(whole: dict[str, Any]) -> None:
    """One retention and one class for a log group.

    translator/translate/logs/util/validate_fields.go
    """
    first: dict[tuple[str, str], Any] = {}
    files = whole.get("logs", {}).get("logs_collected", {}).get("files", {})
    for entry in files.get("collect_list", []):
        group = entry.get("log_group_name", "").lower()
        retention = entry.get("retention_in_days", 0)
        values = {
            "retention_in_days": retention if retention > 0 else None,
            "log_group_class": entry.get("log_group_class", "").upper() or None,
        }
        for key, value in values.items():
            if value is not None and first.setdefault((group, key), value) != value:
                raise ConfigError(
                    "Under path : /logs/logs_collected/files/collect_list/ | Error : "
                    f"Different {key} values can't be set for the same log group: {group}"
                )


def _merge(target: dict[str, Any], more: dict[str, Any], path: str) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value, path + "/" + key)
        elif isinstance(value, list):
            present = target.setdefault(key, [])
            present.extend(item for item in value if item not in present)
        elif target.setdefault(key, value) != value:
            raise ConfigError(
                f"Under path : {path}/ | Error : Different values are specified for {key}"
            )
