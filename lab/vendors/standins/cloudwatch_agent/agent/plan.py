"""What a configuration makes the agent do on this machine: its logs and its metrics.

github:aws/amazon-cloudwatch-agent translator/translate/ @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
(logs/logs_collected/files, util/placeholderUtil.go, metrics/util/commonconfigutil.go,
otel/exporter/awscloudwatch/translator.go, tocwconfig/sampleConfig/drop_origin_linux.yaml)
"""

from __future__ import annotations

import re
import socket
import time

from . import gpu

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

# The dimensions that append_dimensions can add, each with its only value.
APPENDED = ("ImageId", "InstanceId", "InstanceType", "AutoScalingGroupName")
_UNKNOWN = {"instanceId": "i-UNKNOWN", "accountId": "UNKNOWN-ACCOUNT", "region": "UNKNOWN-REGION"}


class Source:
    """A file whose lines go to a log stream."""

    def __init__(self, entry: dict[str, Any], default_stream: str, places: dict[str, str]) -> None:
        self.path = entry["file_path"]
        group = entry.get("log_group_name") or re.sub(r"\.[^./]*$", "", self.path)
        self.group = resolved(group, places)
        self.stream = resolved(entry.get("log_stream_name") or default_stream, places)
        self.log_class = entry.get("log_group_class", "").upper()
        self.retention = int(entry.get("retention_in_days", -1))
        self.time_format = entry.get("timestamp_format")
        self.utc = entry.get("timezone") == "UTC"
        self.trims = entry.get("trim_timestamp") is True
        self.from_beginning = entry.get("from_beginning", True) is not False
        start = entry.get("multi_line_start_pattern", r"^[\S]")
        self.starts_with_time = start in ("{timestamp_format}", "{timestamp_regex}")
        self.start = None if self.starts_with_time else re.compile(start)
        self.filters = [
            (filter_["type"] == "include", re.compile(filter_["expression"]))
            for filter_ in entry.get("filters", [])
        ]


class Section:
    """`nvidia_gpu` of metrics_collected: fields, interval, names and dimensions."""

    def __init__(self, section: dict[str, Any], agent_interval: int, about: dict[str, Any]) -> None:
        prefix = "nvidia_smi_"
        self.interval = int(section.get("metrics_collection_interval", agent_interval))
        self.high_resolution = self.interval < 60
        self.names: dict[str, str] = {}
        self.units: dict[str, str] = {}
        for listed in section.get("measurement", []):
            measurement = {"name": listed} if isinstance(listed, str) else listed
            field = measurement["name"].strip().replace(prefix, "", 1)
            self.names[field] = measurement.get("rename", "").strip() or prefix + field
            self.units[field] = measurement.get("unit", "").strip() or "None"
        self.appended = {
            name: resolved_aws(value, about)
            for name, value in section.get("append_dimensions", {}).items()
        }
        self.dropped = {
            self.names.get(name.replace(prefix, "", 1), name)
            for name in section.get("drop_original_metrics", [])
        }


class Plan:
    """Everything together. `about` is the instance identity document, {} without IMDS."""

    def __init__(self, config: dict[str, Any], about: dict[str, Any]) -> None:
        places = _places(about)
        logs = config.get("logs", {})
        stream = logs.get("log_stream_name") or "{instance_id}"
        files = logs.get("logs_collected", {}).get("files", {}).get("collect_list", [])
        self.sources = [Source(entry, stream, places) for entry in files]
        self.logs_flush = float(logs.get("force_flush_interval", 5))
        metrics = config.get("metrics", {})
        interval = config.get("agent", {}).get("metrics_collection_interval", 60)
        collected = metrics.get("metrics_collected", {})
        own = collected.get("nvidia_gpu")
        self.gpu = Section(own, interval, about) if own is not None else None
        self.elsewhere = sorted({*collected, *logs.get("metrics_collected", {})} - {"nvidia_gpu"})
        if self.gpu:
            self.elsewhere += [n for field, n in self.gpu.names.items() if field not in gpu.FIELDS]
        self.namespace = metrics.get("namespace", "CWAgent")
        self.metrics_flush = float(metrics.get("force_flush_interval", 60))
        dimensions = metrics.get("append_dimensions", {})
        self.appended = [name for name in APPENDED if dimensions.get(name) == f"${{aws:{name}}}"]
        self.tagged = bool(dimensions)
        self.rollups = rollups(metrics.get("aggregation_dimensions", []))
        self.host = not config.get("agent", {}).get("omit_hostname", False)


def rollups(lists: list[list[str]]) -> list[list[str]]:
    """The sets of aggregation_dimensions, each once, sorted."""
    unique: list[list[str]] = []
    for names in lists:
        if sorted(set(names)) not in unique:
            unique.append(sorted(set(names)))
    return unique


def resolved(text: str, places: dict[str, str]) -> str:
    """A name with its placeholders replaced."""
    for name, value in places.items():
        text = text.replace(name, value)
    return text.replace("{date}", time.strftime("%Y-%m-%d"))


def resolved_aws(text: str, about: dict[str, Any]) -> str:
    """A dimension's value with ${aws:InstanceId} and the like replaced."""
    keys = {"InstanceId": "instanceId", "InstanceType": "instanceType", "ImageId": "imageId"}
    match = re.match(r"^\$\{aws:(\w+)\}$", str(text))
    return str(about.get(keys.get(match[1], ""), "")) if match else str(text)


def _places(about: dict[str, Any]) -> dict[str, str]:
    local = socket.gethostname()
    return {
        "{instance_id}": about.get("instanceId") or _UNKNOWN["instanceId"],
        "{hostname}": about.get("hostname") or local,
        "{local_hostname}": local,
        "{ip_address}": about.get("privateIp") or "UNKNOWN-IP",
        "{aws_region}": about.get("region") or _UNKNOWN["region"],
        "{account_id}": about.get("accountId") or _UNKNOWN["accountId"],
    }
