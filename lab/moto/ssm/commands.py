"""Commands that were sent: their invocations, one for each instance, and what became of them.

https://docs.aws.amazon.com/systems-manager/latest/userguide/monitor-commands.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/send-commands-multiple.html
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from moto.ssm.exceptions import SSMException

from lab.moto.ssm.documents import Step

# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_CommandPlugin.html
LONGEST_PLUGIN_OUTPUT = 2_500
# Ends an output that was cut, as seen in published answers.
CUT = "--output truncated--"
FINAL = ("Success", "Failed", "TimedOut", "Cancelled")
_ERRORS = ("Failed", "TimedOut")

Send = Callable[[str, dict[str, Any]], bool]


@dataclass
class Plugin:
    """A step on one instance."""

    step: Step
    status: str = "Pending"
    details: str = "Pending"
    code: int = -1
    out: str = ""
    err: str = ""
    started: float = 0.0
    ended: float = 0.0


@dataclass
class Invocation:
    """A command on one instance."""

    instance_id: str
    plugins: list[Plugin]
    requested: float
    status: str = "Pending"
    details: str = "Pending"
    sent: bool = False


@dataclass
class Command:
    """A command that was sent."""

    request: dict[str, Any]
    document: str
    parameters: dict[str, Any]
    invocations: list[Invocation]
    concurrency: int
    errors: int  # so many may fail
    lifetime: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    requested: float = field(default_factory=time.time)
    cancelled: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def failed(self) -> int:
        return sum(invocation.status in _ERRORS for invocation in self.invocations)


def number(text: str, total: int, name: str) -> int:
    """`10` or `10%` of the targets. Of a percentage of them at least one, for concurrency."""
    share = text.removesuffix("%")
    if not re.fullmatch("[0-9]{1,7}", share) or (name == "MaxConcurrency" and int(share) == 0):
        raise SSMException("ValidationException", f"{name}: {text} is not a number or a percentage")
    if share == text:
        return int(text)
    counted = total * int(share) // 100
    return max(counted, 1) if name == "MaxConcurrency" else counted


def advance(command: Command, send: Send) -> None:
    """Send to as many instances as may run at once; end what must not start any more."""
    with command.lock:
        expired = time.time() - command.requested > command.lifetime
        for invocation in command.invocations:
            if invocation.status == "Pending" and expired:
                finish(invocation, "TimedOut", "DeliveryTimedOut")
        if command.failed() > command.errors or command.cancelled:
            details = "Cancelled" if command.cancelled else "Terminated"
            for invocation in command.invocations:
                if invocation.status == "Pending" and not invocation.sent:
                    finish(invocation, "Cancelled", details)
            return
        for invocation in command.invocations:
            going = sum(o.sent and o.status not in FINAL for o in command.invocations)
            if invocation.sent or invocation.status != "Pending" or going >= command.concurrency:
                continue
            invocation.sent = send(invocation.instance_id, message(command, invocation))
            if not invocation.sent:
                finish(invocation, "Failed", "Undeliverable")
                advance(command, send)
                return


def cancel(command: Command, send: Send) -> None:
    """End what has not started; tell the agents of what has."""
    with command.lock:
        command.cancelled = True
        for invocation in command.invocations:
            if invocation.status in FINAL:
                continue
            if invocation.sent:
                invocation.status = invocation.details = "Cancelling"
                send(invocation.instance_id, {"Kind": "cancel", "CommandId": command.id})
            else:
                finish(invocation, "Cancelled", "Cancelled")


def finish(invocation: Invocation, status: str, details: str) -> None:
    """End an invocation, and those of its steps that are not over."""
    invocation.status, invocation.details = status, details
    for plugin in invocation.plugins:
        if plugin.status not in FINAL:
            plugin.status, plugin.details = status, details


def message(command: Command, invocation: Invocation) -> dict[str, Any]:
    """The message with the steps that the agent runs."""
    return {
        "Kind": "send",
        "CommandId": command.id,
        "Steps": [
            {
                "Name": plugin.step.name,
                "Action": plugin.step.action,
                "Inputs": plugin.step.inputs,
                "Script": plugin.step.script,
                "Timeout": plugin.step.timeout,
                "Runs": plugin.step.runs,
                "OnFailure": plugin.step.on_failure,
            }
            for plugin in invocation.plugins
        ],
    }


def reply(command: Command, instance_id: str, result: dict[str, Any]) -> None:
    """Take what an agent says of one step, or of the whole invocation."""
    with command.lock:
        invocation = instance_invocation(command, instance_id)
        if invocation.status in FINAL:
            return
        number = result.get("Step")
        if number is None:
            invocation.status, invocation.details = str(result["Status"]), str(result["Details"])
            return
        plugin = invocation.plugins[int(number)]
        invocation.status = invocation.details = "InProgress"
        plugin.status, plugin.details = str(result["Status"]), str(result["Details"])
        plugin.code = int(result["Code"])
        plugin.out, plugin.err = str(result["Out"]), str(result["Err"])
        plugin.started, plugin.ended = float(result["Started"]), float(result["Ended"])


def instance_invocation(command: Command, instance_id: str) -> Invocation:
    """A command's invocation. Raises SSMException."""
    for invocation in command.invocations:
        if invocation.instance_id == instance_id:
            return invocation
    raise SSMException(
        "InvocationDoesNotExist",
        f"Command {command.id} was not sent to {instance_id}",
    )


def cut(text: str, longest: int) -> str:
    """An output; one that was cut ends with a note of that."""
    return text if len(text) <= longest else text[: longest - len(CUT)] + CUT
