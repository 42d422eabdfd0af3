"""The agent's files for one image, split so that the agent also runs without a GPU.

At each start the agent merges every file in `amazon-cloudwatch-agent.d/`. If one of them has
`nvidia_gpu` and there is no `/usr/bin/nvidia-smi`, it exits and ships no logs either. So the bake
puts only the events there; files that depend on the hardware are in `kiln.d/` beside it, from
where `kiln-agent-sources` (`ExecStartPre` of the agent's unit) copies what this machine can serve.
"""

from __future__ import annotations

import json
from typing import Any

from kiln.base.errors import Finding, Level
from kiln.base.templates import render
from kiln.base.versions import at_least
from kiln.telemetry.settings import Telemetry, agent_has, telemetry_facts

MERGED = "amazon-cloudwatch-agent.d"
STAGED = "kiln.d"
EVENTS = f"{MERGED}/kiln-events.json"
# The events without what two files cannot both decide: retention and class of the log group.
PLAIN_EVENTS = f"{STAGED}/events-plain.json"
# kiln-agent-sources makes dcgm-scrape.yaml of it, with the instance's id for @INSTANCE_ID@.
SCRAPE_TEMPLATE = f"{STAGED}/dcgm-scrape.template"
# The agent's own default, in seconds.
_USUAL_FLUSH = 60
EVENT_LOG = "/var/log/gpuevent.log"
TIMESTAMP_FORMAT = "%Y-%m-%dT%H:%M:%S.%f"


def agent_files(
    settings: Telemetry, driver: str, agent_version: str | None = None
) -> dict[str, str]:
    """Path below the agent's `etc` → text of each file.

    `driver` is the version of the image's driver ("" without one), `agent_version` that of the
    agent (None if it is not pinned). Files in `amazon-cloudwatch-agent.d/` always apply, those in
    `kiln.d/` only on machines with the hardware.
    """
    files: dict[str, Any] = {
        EVENTS: _events(settings, agent_version),
        PLAIN_EVENTS: _events(settings, None, plain=True),
    }
    if settings.metrics and driver:
        files[f"{STAGED}/gpu.json"] = _metrics(settings, {"nvidia_gpu": _gpu(settings)})
    if settings.efa and agent_has("efa", agent_version):
        files[f"{STAGED}/efa.json"] = _metrics(settings, _efa(settings))
    if settings.host:
        files[f"{STAGED}/host.json"] = _metrics(settings, _host(settings, agent_version))
    if settings.dcgm and driver:
        files[f"{STAGED}/dcgm.json"] = _dcgm(settings)
        facts, every = telemetry_facts()["dcgm"], settings.interval
        files[SCRAPE_TEMPLATE] = render("telemetry/dcgm-scrape.yaml.j2", interval=every, **facts)
    return {path: _text(content) for path, content in files.items()}


def agent_config_problems(
    settings: Telemetry,
    driver: str,
    agent_version: str | None,
    *,
    mig: bool = False,
    exporter: bool | None = None,
) -> list[Finding]:
    """The settings that the agent refuses or does not follow as written, on an image of these
    versions. `exporter`: whether dcgm-exporter is on the image; None if unknown."""
    facts = telemetry_facts()
    problems = []

    def add(level: Level, rule: str, message: str, hint: str) -> None:
        source = "docs/telemetry-cloudwatch.md"
        problems.append(Finding(level, f"cloudwatch-{rule}", message, hint, source=source))

    def needs(feature: str, rule: str, lacks: str, otherwise: str = "") -> None:
        if not agent_has(feature, agent_version):
            fix = f"pin agent {facts['agent']['since'][feature]} or newer{otherwise}"
            add("error", rule, f"CloudWatch agent {agent_version} {lacks}", fix)

    moved = at_least(driver, str(facts["agent"]["power_moved_in_driver"]))
    if "power_draw" in settings.metrics and moved:
        lacks = f"cannot read power_draw with driver {driver}"
        needs("power_draw_driver_570", "power-draw", lacks, ", or remove power_draw")
    if settings.metrics:
        needs("nvidia_gpu", "nvidia-gpu", "has no nvidia_gpu section and ignores it")
    if settings.efa:
        needs("efa", "efa", "has no efa section and ignores it", ", or remove efa: true")
    if settings.log_class != facts["logs"]["class_with_metric_filters"]:
        lacks = f"cannot create a {settings.log_class} log group"
        needs("log_group_class", "log-class", lacks, ", or set log_class: STANDARD")
        add(
            "warning",
            "log-class",
            f"a {settings.log_class} log group supports no metric filter: no alarm on an Xid",
            "set log_class: STANDARD",
        )
    lost = [name for name in settings.metrics if name in facts["gpu_metrics"]["lost_with_mig"]]
    if mig and lost and not settings.dcgm:
        add(
            "warning",
            "mig",
            f"a GPU in MIG mode does not report {' and '.join(lost)} to the agent",
            "add dcgm: true, which measures each slice, or remove them",
        )
    if settings.dcgm and exporter is False:
        add(
            "error",
            "dcgm",
            "telemetry asks for dcgm: true, but dcgm-exporter is not on the image: "
            "no DCGM metric would arrive",
            "add dcgm_exporter: <version> to the row or its stack, or remove dcgm: true",
        )
    if exporter and not settings.dcgm:
        add(
            "warning",
            "dcgm",
            "dcgm-exporter is on the image, but nothing sends its metrics to CloudWatch",
            "add dcgm: true to telemetry, or scrape it with your own Prometheus agent",
        )
    return problems


def _events(
    settings: Telemetry, agent_version: str | None, *, plain: bool = False
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "file_path": EVENT_LOG,
        "log_group_name": settings.log_group,
        "log_stream_name": "{instance_id}",
        "timestamp_format": TIMESTAMP_FORMAT,
        "timezone": "UTC",
    }
    if not plain and agent_has("retention_in_days", agent_version):
        entry["retention_in_days"] = settings.retention_days
    if not plain and agent_has("log_group_class", agent_version):
        entry["log_group_class"] = settings.log_class
    # No run_as_user: root is the agent's default, and a second value in another file is a clash.
    return {"logs": {"logs_collected": {"files": {"collect_list": [entry]}}}}


def _metrics(settings: Telemetry, sections: dict[str, Any]) -> dict[str, Any]:
    # The agent merges files key by key, and a difference is fatal: these keys are equal everywhere.
    appended = telemetry_facts()["append_dimensions"]
    metrics: dict[str, Any] = {
        "namespace": settings.namespace,
        "append_dimensions": {name: appended[name] for name in settings.dimensions},
        "aggregation_dimensions": [list(names) for names in settings.aggregate_by],
        "force_flush_interval": settings.flush_interval,
        "metrics_collected": sections,
    }
    if settings.flush_interval == _USUAL_FLUSH:
        del metrics["force_flush_interval"]
    for optional in ("append_dimensions", "aggregation_dimensions"):
        if not metrics[optional]:
            del metrics[optional]
    return {"metrics": metrics}


def _gpu(settings: Telemetry) -> dict[str, Any]:
    units = telemetry_facts()["gpu_metrics"]["names"]
    dropped = {"drop_original_metrics": list(settings.metrics)} if settings.drop_original else {}
    return {
        "measurement": [
            {"name": name, "unit": units[name]} if units[name] else name
            for name in settings.metrics
        ],
        "metrics_collection_interval": settings.interval,
        **dropped,
    }


def _host(settings: Telemetry, agent_version: str | None) -> dict[str, Any]:
    facts = telemetry_facts()
    sections = {}
    for name in settings.host:
        section = dict(facts["host"][name])
        if name == "diskio" and agent_has("instance_store", agent_version):
            section["measurement"] = [*section["measurement"], *facts["host_instance_store"]]
        # ethtool has no interval of its own.
        every = {} if name == "ethtool" else {"metrics_collection_interval": settings.interval}
        sections[name] = {**section, **every}
    return sections


def _efa(settings: Telemetry) -> dict[str, Any]:
    names = [counter["agent"] for counter in telemetry_facts()["efa"]["counters"]]
    return {"efa": {"measurement": names, "metrics_collection_interval": settings.interval}}


def _dcgm(settings: Telemetry) -> dict[str, Any]:
    dcgm = telemetry_facts()["dcgm"]
    selectors = [f"^{field['name']}$" for field in dcgm["fields"]]
    # A MIG slice has the label GPU_I_ID, a whole GPU has not. Without two matchers all slices of a
    # GPU would be written into one series.
    declarations = [
        {
            "source_labels": ["job", "GPU_I_ID"],
            "label_matcher": matcher,
            "dimensions": [["InstanceId", *dimensions]],
            "metric_selectors": selectors,
        }
        for matcher, dimensions in (
            (f"^{dcgm['job']}-[^;]*;$", dcgm["dimensions"]),
            (f"^{dcgm['job']}-[^;]*;.+$", dcgm["mig_dimensions"]),
        )
    ]
    prometheus = {
        # An empty one makes the agent ask EC2 for tags at each start, and die where it may not.
        "cluster_name": dcgm["cluster_name"],
        "prometheus_config_path": f"{telemetry_facts()['agent']['etc']}/{STAGED}/dcgm-scrape.yaml",
        "log_group_name": dcgm["log_group"],
        "emf_processor": {
            "metric_namespace": settings.namespace,
            "metric_unit": {f["name"]: f["unit"] for f in dcgm["fields"] if f["unit"]},
            "metric_declaration": declarations,
        },
    }
    return {"logs": {"metrics_collected": {"prometheus": prometheus}}}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
