"""The agent's statsd server: datagrams in, sums of an interval out.

github:aws/amazon-cloudwatch-agent plugins/inputs/statsd/statsd.go,
translator/translate/metrics/metrics_collect/statsd, plugins/outputs/cloudwatch/aggregator.go,
translator/translate/otel/pipeline/host/translators.go (statsd's metrics have no appended
dimensions, and so keep `host`) @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import socket

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Tuple

    # Name and tags → for each value how often it came.
    Series = Tuple[str, Tuple[Tuple[str, str], ...]]
    Values = Dict[float, float]

_KINDS = {"g": "gauge", "c": "counter", "s": "set", "ms": "timing", "h": "histogram"}
_LARGEST = 64 * 1024
_MOST_VALUES = 150  # of a datum: what one PutMetricData may carry


class Server:
    """Listens on service_address. `rows` is what came since the last call."""

    def __init__(self, options: dict[str, Any], say: Callable[[str], None]) -> None:
        self.interval = int(options.get("metrics_collection_interval", 10))
        self.aggregation = int(options.get("metrics_aggregation_interval", 60))
        self.tags = options.get("parse_data_dog_tags", True) is not False
        self.separator = options.get("metric_separator") or "_"
        self.say = say
        self.gauges: dict[Series, float] = {}
        self.counters: dict[Series, int] = {}
        self.sets: dict[Series, set[str]] = {}
        self.timings: dict[Series, Values] = {}
        host, _, port = str(options.get("service_address") or ":8125").rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((host, int(port)))

    def listen(self) -> None:
        """Take what has arrived."""
        while True:
            try:
                packet = self.socket.recv(_LARGEST)
            except OSError:
                return
            for line in packet.decode("utf-8", "replace").splitlines():
                if line.strip():
                    self.take(line.strip())

    def take(self, line: str) -> None:
        """One line; what cannot be read is logged and left out."""
        segments, tags = [], {}
        for segment in line.split("|"):
            if self.tags and segment.startswith("#"):
                for tag in segment[1:].split(","):
                    key, colon, value = tag.partition(":")
                    if key:
                        # CloudWatch takes no empty value.
                        tags[key] = value if colon else "<empty>"
            else:
                segments.append(segment)
        bucket, *bits = "|".join(segments).split(":")
        if not bits:
            self.say(f"E! Error: splitting ':', Unable to parse metric: {line}")
            return
        name, *pairs = bucket.split(",")
        for pair in pairs:
            key, _, value = pair.partition("=")
            if key:
                tags[key] = value
        for bit in bits:
            try:
                self._add(name.replace(".", self.separator), tags, bit.split("|"))
            except (ValueError, IndexError):
                self.say(f"E! Error: Unable to parse metric: {line}")
                return

    def _add(self, name: str, tags: dict[str, str], parts: list[str]) -> None:
        text, kind = parts[0], parts[1]
        rate = float(parts[2][1:]) if len(parts) > 2 and parts[2].startswith("@") else 0.0
        series = (name, tuple(sorted(dict({"metric_type": _kind(kind)}, **tags).items())))
        signed = text[:1] in ("+", "-")
        if signed and kind not in ("g", "c"):
            raise ValueError(text)
        if kind == "s":
            self.sets.setdefault(series, set()).add(text)
        elif kind == "c":
            gained = float(text) / (rate or 1.0)
            self.counters[series] = self.counters.get(series, 0) + int(gained)
        elif kind == "g":
            before = self.gauges.get(series, 0.0) if signed else 0.0
            self.gauges[series] = before + float(text)
        else:
            values = self.timings.setdefault(series, {})
            values[float(text)] = values.get(float(text), 0.0) + 1 / (rate or 1.0)

    def rows(self) -> list[tuple[Series, Values]]:
        """Every series since the last call: its values with how often each came."""
        listed: list[tuple[Series, Values]] = list(self.timings.items())
        for held in (self.gauges, self.counters):
            listed += [(series, {float(value): 1.0}) for series, value in held.items()]
        listed += [(series, {float(len(seen)): 1.0}) for series, seen in self.sets.items()]
        self.gauges, self.counters, self.sets, self.timings = {}, {}, {}, {}
        return listed


def _kind(kind: str) -> str:
    if kind not in _KINDS:
        raise ValueError(kind)
    return _KINDS[kind]


class Aggregator:
    """Collects the rows of an aggregation interval into one datum for each series."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.held: dict[tuple[Series, float], Values] = {}

    def add(self, rows: list[tuple[Series, Values]], now: float) -> None:
        """Take rows of this moment."""
        start = now - now % self.seconds if self.seconds else now
        for series, values in rows:
            held = self.held.setdefault((series, start), {})
            for value, count in values.items():
                held[value] = held.get(value, 0.0) + count

    def over(self, now: float) -> list[tuple[Series, float, Values]]:
        """What belongs to intervals that are over: series, their beginning, values."""
        done = [key for key in self.held if key[1] + self.seconds <= now]
        finished = []
        for key in sorted(done, key=lambda key: (key[1], key[0])):
            values = self.held.pop(key)
            items = sorted(values.items())
            for first in range(0, len(items), _MOST_VALUES):
                finished.append((key[0], key[1], dict(items[first : first + _MOST_VALUES])))
        return finished
