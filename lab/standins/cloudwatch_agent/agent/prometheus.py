"""The section prometheus of logs.metrics_collected: scraped text becomes log events in the embedded
metric format, of which CloudWatch makes metrics.

github:aws/amazon-cloudwatch-agent plugins/inputs/prometheus/{metrics_handler,calculator,
metrics_filter,utils}.go, translator/translate/otel/exporter/awsemf/{prometheus.go,
awsemf_default_prometheus.yaml} @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317;
github:amazon-contributing/opentelemetry-collector-contrib exporter/awsemfexporter/
{metric_translator,metric_declaration}.go @8e059f1441dbfc24b52d9716a95a7799565679de
"""

from __future__ import annotations

import json
import math
import re
import sys
import urllib.request

from .aws import AwsError

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Tuple

    from .aws import Caller

    Labels = Dict[str, str]
    # Labels, type, name, value
    Sample = Tuple[Labels, str, str, float]

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)(\s+-?[0-9]+)?")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"n": "\n"}
# Types that the agent sends; histograms and untyped ones it drops.
_TYPES = ("gauge", "counter", "summary")
# What the lab knows of a scrape configuration; the agent knows all of Prometheus's.
_GLOBAL = {"scrape_interval", "scrape_timeout"}
_JOB = {"job_name", "file_sd_configs", "static_configs", "metrics_path", *_GLOBAL}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Declaration:
    """An entry of metric_declaration."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.labels = entry["source_labels"]
        self.matcher = re.compile(entry.get("label_matcher", ".*"))
        self.dimensions = entry.get("dimensions", [])
        self.selectors = [re.compile(pattern) for pattern in entry["metric_selectors"]]

    def fits(self, labels: Labels) -> bool:
        """Whether it is about series with these labels."""
        text = ";".join(labels.get(name, "") for name in self.labels)
        return self.matcher.search(text) is not None

    def takes(self, name: str) -> bool:
        """Whether it is about this metric."""
        return any(selector.search(name) for selector in self.selectors)


class Job:
    """A scrape job and when it is due."""

    def __init__(self, entry: dict[str, Any], settings: dict[str, Any], now: float) -> None:
        self.name = str(entry["job_name"])
        self.path = str(entry.get("metrics_path", "/metrics"))
        self.interval = _seconds(
            entry.get("scrape_interval") or settings.get("scrape_interval", "1m")
        )
        self.patience = min(
            _seconds(entry.get("scrape_timeout") or settings.get("scrape_timeout", "10s")),
            self.interval,
        )
        self.entry = entry
        self.due = now + 1

    def targets(self) -> list[tuple[str, Labels]]:
        """Addresses, each with its labels. Raises OSError and ValueError."""
        groups = list(self.entry.get("static_configs", []))
        for config in self.entry.get("file_sd_configs", []):
            for path in config["files"]:
                with open(path) as stream:
                    groups += json.load(stream)
        return [
            (str(target), dict(group.get("labels", {})))
            for group in groups
            for target in group["targets"]
        ]


class Scraper:
    """All jobs of the section. Raises ValueError for one that the lab's agent cannot run."""

    def __init__(
        self, section: dict[str, Any], caller: Caller, say: Callable[[str], None], now: float
    ) -> None:
        emf = section.get("emf_processor", {})
        self.group = section["log_group_name"]
        self.cluster = section.get("cluster_name", "")
        self.namespace = emf.get("metric_namespace", "CWAgent/Prometheus")
        self.units = emf.get("metric_unit", {})
        # One without labels or selectors is left out, as the agent does.
        self.declarations = [
            Declaration(declaration)
            for declaration in emf.get("metric_declaration", [])
            if "source_labels" in declaration and "metric_selectors" in declaration
        ]
        self.caller, self.say = caller, say
        self.before: dict[str, float] = {}
        self.jobs = _jobs(section["prometheus_config_path"], now)

    def run(self, now: float) -> None:
        """Scrape what is due, and send it."""
        for job in self.jobs:
            if now < job.due:
                continue
            job.due += job.interval * (1 + (now - job.due) // job.interval)
            try:
                for address, labels in job.targets():
                    ask = f"http://{address}{job.path}"
                    with urllib.request.urlopen(ask, timeout=job.patience) as answer:
                        text = answer.read().decode("utf-8", "replace")
                    own = dict(labels, job=job.name, instance=address)
                    self._send(job.name, self.events(text, own, now), now)
            except (AwsError, OSError, ValueError) as error:
                self.say(f"E! prometheus: job {job.name}: {error}")

    def events(self, text: str, own: Labels, now: float) -> list[str]:
        """The log events of what a target answered; `own` are the labels of the target."""
        merged: dict[str, tuple[Labels, dict[str, float]]] = {}
        for labels, kind, name, value in samples(text):
            # A scraped label that collides with a target label is renamed.
            scraped = {("exported_" + k if k in own else k): v for k, v in labels.items()}
            whole = dict(scraped, prom_metric_type=kind)
            whole.update(own)
            if self.cluster:
                whole.setdefault("ClusterName", self.cluster)
            key = json.dumps(whole, sort_keys=True)
            counts = kind == "counter" or (kind == "summary" and name.endswith(("_sum", "_count")))
            if counts:
                place = f"{key} {name}"
                former, self.before[place] = self.before.get(place), value
                if former is None:
                    continue
                gained = value - former if value >= former else value
            else:
                gained = value
            merged.setdefault(key, (whole, {}))[1][name] = gained
        return [self._event(labels, fields, now) for labels, fields in merged.values()]

    def _event(self, labels: Labels, fields: dict[str, float], now: float) -> str:
        moment = str(int(now * 1000))
        event: dict[str, Any] = dict(labels, Version="0", Timestamp=moment)
        fitting = [declaration for declaration in self.declarations if declaration.fits(labels)]
        groups: dict[tuple[int, ...], list[dict[str, str]]] = {}
        for name in fields:
            by = tuple(
                number for number, declaration in enumerate(fitting) if declaration.takes(name)
            )
            unit = {"Unit": self.units[name]} if name in self.units else {}
            if by:
                groups.setdefault(by, []).append(dict({"Name": name}, **unit))
        directives = []
        for by, metrics in groups.items():
            sets: list[list[str]] = []
            for number in by:
                for names in fitting[number].dimensions:
                    if all(name in labels for name in names) and sorted(names) not in sets:
                        sets.append(sorted(names))
            if sets:
                directives.append(
                    {"Namespace": self.namespace, "Dimensions": sets, "Metrics": metrics}
                )
        if directives:
            event["CloudWatchMetrics"] = directives
        return json.dumps(dict(event, **fields))

    def _send(self, job: str, events: list[str], now: float) -> None:
        if not events:
            return
        place = {"logGroupName": self.group, "logStreamName": job}
        body = [{"timestamp": int(now * 1000), "message": event} for event in events]
        try:
            self.caller.put_metrics_in_events(logEvents=body, **place)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            for call, names in (
                ("CreateLogGroup", {"logGroupName": self.group}),
                ("CreateLogStream", place),
            ):
                try:
                    self.caller.logs(call, **names)
                except AwsError as late:
                    if late.code != "ResourceAlreadyExistsException":
                        raise
            self.caller.put_metrics_in_events(logEvents=body, **place)


def samples(text: str) -> list[Sample]:
    """The samples of Prometheus's text format that the agent sends.

    https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
    """
    kinds: dict[str, str] = {}
    read_samples: list[Sample] = []
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#"):
            if len(words) >= 4 and words[1] == "TYPE":
                kinds[words[2]] = words[3]
            continue
        match = _SAMPLE.fullmatch(line.strip())
        if not match:
            continue
        name = match[1]
        family = name if name in kinds else re.sub("_(sum|count)$", "", name)
        kind, value = kinds.get(family, "untyped"), float(match[3].replace("Inf", "inf"))
        if kind in _TYPES and math.isfinite(value):
            labels = {key: _unescaped(shown) for key, shown in _LABEL.findall(match[2] or "")}
            read_samples.append((labels, kind, name, value))
    return read_samples


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda code: _ESCAPES.get(code[1], code[1]), text)


def _jobs(path: str, now: float) -> list[Job]:
    # The distribution's module, which cloud-init needs: the start script has no site-packages.
    sys.path.append("/usr/lib/python3/dist-packages")
    import yaml

    with open(path) as stream:
        whole = yaml.safe_load(stream) or {}
    settings = whole.get("global", {})
    jobs = whole.get("scrape_configs", [])
    strange = [*(set(whole) - {"global", "scrape_configs"}), *(set(settings) - _GLOBAL)]
    strange += [key for job in jobs for key in set(job) - _JOB]
    if strange:
        raise ValueError(f"{path}: the lab does not know {', '.join(sorted(strange))}")
    return [Job(job, settings, now) for job in jobs]


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]+)(ms|s|m|h)", str(text))
    if not match:
        raise ValueError(f"not a duration: {text}")
    return int(match[1]) * _SECONDS[match[2]]
