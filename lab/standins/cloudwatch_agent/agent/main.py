"""The agent's run: what it collects, and the loop that sends it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from . import aws, config, efa, gpu, host, metrics, prometheus
from .logfile import Tail
from .plan import Plan
from .statsd import Aggregator, Server
from .stream import Stream

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

    from .gpu import Gpu
    from .plan import Section

HOME = "/opt/aws/amazon-cloudwatch-agent"
_MARK = " (AMI Kiln lab stand-in)"
_TICK = 0.5


def say(text: str) -> None:
    """A line for the journal and the agent's own log."""
    line = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) + " " + text
    print(line, flush=True)  # noqa: T201 -- for the journal
    os.makedirs(HOME + "/logs", exist_ok=True)
    with open(HOME + "/logs/amazon-cloudwatch-agent.log", "a") as log:
        log.write(line + "\n")


def refuse(text: str, status: int = 1) -> NoReturn:
    """Say why the agent does not run, and end."""
    say("E! " + text + _MARK)
    sys.exit(status)


def start(version: str) -> None:
    """What start-amazon-cloudwatch-agent does."""
    try:
        settings = config.load(HOME + "/etc")
    except config.ConfigError as error:
        refuse(f"Cannot translate JSON: {error}")
    if settings is None:
        say("No json config files found, please provide config, exit now")
        sys.exit(0)
    collected = settings.get("metrics", {}).get("metrics_collected", {})
    if "nvidia_gpu" in collected and not os.path.exists(gpu.PROGRAM):
        refuse(
            f"[inputs.nvidia_smi]: nvidia-smi binary not at path {gpu.PROGRAM}, "
            "cannot gather GPU data"
        )
    with open(HOME + "/etc/amazon-cloudwatch-agent.toml", "w") as stream:
        stream.write(f"# AMI Kiln lab stand-in\n# {json.dumps(settings, sort_keys=True)}\n")
    say(f"I! Starting AmazonCloudWatchAgent CWAgent/{version}{_MARK}")
    run(settings)


def run(settings: dict[str, Any]) -> None:
    """Collect and send until the process is ended."""
    about = json.loads(aws.imds("dynamic/instance-identity/document") or "{}")
    about["hostname"] = aws.imds("meta-data/hostname") if about else ""
    if not about:
        # Its translator asks for a region that nobody gives; that it then sends nothing is assumed.
        say("E! EC2 metadata is not available, nothing is sent" + _MARK)
    plan = Plan(settings, about)
    if plan.elsewhere:
        say("W! not collected in the lab: {}{}".format(", ".join(plan.elsewhere), _MARK))
    caller = aws.Caller(about.get("region", ""))
    state = HOME + "/logs/state"
    tails = [Tail(source, state) for source in plan.sources]
    streams = [Stream(source, caller, plan.logs_flush, say) for source in plan.sources]
    outbox = metrics.Outbox(plan, caller, say)
    appended = _appended(plan, about, caller)
    started = time.time()
    collectors = [
        _Collector(plan, section, appended, started) for section in plan.sections.values()
    ]
    statsd = _Statsd(plan, started) if plan.statsd is not None else None
    scraper = _scraper(plan, caller, started)
    while True:
        now = time.time()
        if about:
            for tail, stream in zip(tails, streams):
                for seconds, text in tail.events(now):
                    stream.add(seconds, text, now)
                if stream.waiting and stream.send(now):
                    tail.keep()
            for collector in collectors:
                outbox.add(collector.datums(now), now)
            if statsd:
                outbox.add(statsd.datums(now), now)
            if scraper:
                scraper.run(now)
            outbox.send(now)
        time.sleep(_TICK)


class _Collector:
    """A section: what it measures each time that it is due."""

    def __init__(
        self, plan: Plan, section: Section, appended: dict[str, str], started: float
    ) -> None:
        self.plan, self.section, self.appended = plan, section, appended
        self.due = started + 1  # the scrapers' initial delay
        self.read = _reader(section)
        self.kept = host.DELTAS.get(section.kind)
        self.deltas = metrics.Deltas()

    def datums(self, now: float) -> list[dict[str, Any]]:
        """The datums of a measurement; none when it is not due or fails, which is logged."""
        if now < self.due:
            return []
        self.due += self.section.interval * (1 + (now - self.due) // self.section.interval)
        try:
            rows = self.read(now)
        except (OSError, ValueError, KeyError) as error:
            say(f"E! Error with adapter: {error}")
            return []
        if self.kept is not None:
            rows = [
                (dims, self.deltas.of(dims, fields, self.kept), at) for dims, fields, at in rows
            ]
        return metrics.datums(self.plan, self.section, rows, self.appended, socket.gethostname())


def _reader(section: Section) -> Callable[[float], list[Gpu]]:
    if section.kind == "nvidia_gpu":
        return lambda now: gpu.read(gpu.ask(), now)
    if section.kind == "efa":
        rows = efa.reader(aws.imds)
    else:
        rows = host.reader(section.kind, section.options)
    return lambda now: [(dimensions, fields, now) for dimensions, fields in rows()]


class _Statsd:
    """The statsd server and what it adds up."""

    def __init__(self, plan: Plan, started: float) -> None:
        self.plan = plan
        try:
            self.server = Server(plan.statsd or {}, say)
        except (OSError, ValueError) as error:
            refuse(f"[inputs.statsd]: {error}")
        self.aggregator = Aggregator(self.server.aggregation)
        self.due = started + self.server.interval

    def datums(self, now: float) -> list[dict[str, Any]]:
        """The datums of the intervals that are over."""
        self.server.listen()
        if now >= self.due:
            self.due += self.server.interval * (1 + (now - self.due) // self.server.interval)
            self.aggregator.add(self.server.rows(), now)
        return metrics.aggregated(self.plan, self.aggregator, socket.gethostname(), now)


def _scraper(plan: Plan, caller: aws.Caller, started: float) -> prometheus.Scraper | None:
    if plan.prometheus is None:
        return None
    try:
        return prometheus.Scraper(plan.prometheus, caller, say, started)
    except (ImportError, OSError, ValueError, KeyError) as error:
        refuse(f"prometheus: {error}")


def _appended(plan: Plan, about: dict[str, Any], caller: aws.Caller) -> dict[str, str]:
    values = {
        "ImageId": about.get("imageId", ""),
        "InstanceId": about.get("instanceId", ""),
        "InstanceType": about.get("instanceType", ""),
    }
    if about and "AutoScalingGroupName" in plan.appended:
        try:
            values["AutoScalingGroupName"] = caller.tags(values["InstanceId"]).get(
                "aws:autoscaling:groupName", ""
            )
        except (aws.AwsError, OSError) as error:
            say(f"W! ec2tagger: Unable to initialize EC2 tags: {error}")
    return values
