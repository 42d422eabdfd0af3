"""The agent's run: what it collects, and the loop that sends it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from . import aws, config, gpu, metrics
from .logfile import Tail
from .plan import Plan
from .stream import Stream

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any, NoReturn

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
    """Do the work of start-amazon-cloudwatch-agent."""
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
    due = time.time() + 1  # the scrapers' initial delay
    while True:
        now = time.time()
        if about:
            for tail, stream in zip(tails, streams):
                for seconds, text in tail.events(now):
                    stream.add(seconds, text, now)
                if stream.waiting and stream.send(now):
                    tail.keep()
            if plan.gpu and now >= due:
                due += plan.interval * (1 + (now - due) // plan.interval)
                outbox.add(_measured(plan, appended, now), now)
            outbox.send(now)
        time.sleep(_TICK)


def _measured(plan: Plan, appended: dict[str, str], now: float) -> list[dict[str, Any]]:
    """The datums of the GPUs; none when that fails, which is logged."""
    try:
        gpus = gpu.read(gpu.ask(), now)
    except (OSError, ValueError, KeyError) as error:
        say(f"E! Error with adapter: {error}")
        return []
    return metrics.datums(plan, gpus, appended, socket.gethostname())


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
