"""Work of the agent on this machine by its configuration: its logs and its metrics.

github:aws/amazon-cloudwatch-agent translator/translate/ @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
(logs/logs_collected/files, util/placeholderUtil.go, metrics/util/commonconfigutil.go,
otel/exporter/awscloudwatch/translator.go, tocwconfig/sampleConfig/drop_origin_linux.yaml)
"""

from __future__ import annotations

from . import gpu

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

# The dimensions that append_dimensions can add, each with its only value.
APPENDED = ("ImageId", "InstanceId", "InstanceType", "AutoScalingGroupName")
_PREFIX = "nvidia_smi_"
_FOLLOWED = {
    "file_path", "log_group_name", "log_stream_name", "log_group_class", "retention_in_days",
    "timestamp_format", "timezone",
}  # fmt: skip


class Source:
    """A file whose lines go to a log stream."""

    def __init__(self, entry: dict[str, Any], default_stream: str, instance: str) -> None:
        self.path = entry["file_path"]
        self.group = entry.get("log_group_name", self.path)
        stream = entry.get("log_stream_name") or default_stream
        self.stream = stream.replace("{instance_id}", instance)
        self.log_class = entry.get("log_group_class", "").upper()
        self.retention = int(entry.get("retention_in_days", -1))
        self.time_format = entry.get("timestamp_format")
        self.utc = entry.get("timezone") == "UTC"
        # What the real agent would follow.
        self.elsewhere = sorted(f"{key} of {self.path}" for key in set(entry) - _FOLLOWED)


class Plan:
    """Everything together. `about` is the instance identity document, {} without IMDS."""

    def __init__(self, config: dict[str, Any], about: dict[str, Any]) -> None:
        logs, metrics = config.get("logs", {}), config.get("metrics", {})
        stream = logs.get("log_stream_name") or "{instance_id}"
        files = logs.get("logs_collected", {}).get("files", {}).get("collect_list", [])
        instance = about.get("instanceId") or "i-UNKNOWN"
        self.sources = [Source(entry, stream, instance) for entry in files]
        self.logs_flush = float(logs.get("force_flush_interval", 5))
        collected = metrics.get("metrics_collected", {})
        self.gpu = "nvidia_gpu" in collected
        section = collected.get("nvidia_gpu", {})
        usual = config.get("agent", {}).get("metrics_collection_interval", 60)
        self.interval = int(section.get("metrics_collection_interval", usual))
        # Field → its unit.
        self.units: dict[str, str] = {}
        for listed in section.get("measurement", []):
            measurement = {"name": listed} if isinstance(listed, str) else listed
            field = measurement["name"].strip().replace(_PREFIX, "", 1)
            self.units[field] = measurement.get("unit", "").strip() or "None"
        dropped = section.get("drop_original_metrics", [])
        self.dropped = {name.replace(_PREFIX, "", 1) for name in dropped}
        self.elsewhere = sorted({*collected, *logs.get("metrics_collected", {})} - {"nvidia_gpu"})
        self.elsewhere += [_PREFIX + field for field in self.units if field not in gpu.FIELDS]
        self.elsewhere += [key for source in self.sources for key in source.elsewhere]
        self.namespace = metrics.get("namespace", "CWAgent")
        self.metrics_flush = float(metrics.get("force_flush_interval", 60))
        dimensions = metrics.get("append_dimensions", {})
        self.appended = [name for name in APPENDED if dimensions.get(name) == f"${{aws:{name}}}"]
        self.host = not dimensions and not config.get("agent", {}).get("omit_hostname", False)
        # The sets of aggregation_dimensions, each once, sorted.
        self.rollups: list[list[str]] = []
        for names in metrics.get("aggregation_dimensions", []):
            if sorted(set(names)) not in self.rollups:
                self.rollups.append(sorted(set(names)))
