"""Run Command: a document on many instances, fifty at once, followed until each has answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.facts.tables import message
from kiln.fleet.machines import in_pages, lost_machines

# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html (Targets)
_AT_ONCE = 50
_FINAL = ("Success", "Failed", "TimedOut", "Cancelled", "Undeliverable", "Terminated")
# Seconds that a command waits for its instance, and between two looks at whether that still runs.
_DELIVERY = 120
_LOOK = 3.0
# Seconds between two questions for answers, at least.
_POLL = 0.5
# Seconds between two lines about what is waited for; the first one comes after a moment.
_REMINDER, _MOMENT = 30.0, 5.0


@dataclass(frozen=True)
class CommandDocument:
    """The document that runs: one of AWS's, or a version of our own, by its hash."""

    name: str
    version: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class CommandAnswer:
    """What became of a command on one instance: `why` says it where it did not succeed."""

    ok: bool
    output: str = ""
    why: str = ""


Batch = tuple[Sequence[str], Mapping[str, Sequence[str]]]


def run_command(
    target: Target,
    document: CommandDocument,
    batches: Sequence[Batch],
    *,
    patience: float,
    waits: Callable[[str], None] = lambda text: None,
) -> dict[str, CommandAnswer]:
    """Run a document on instances, each batch with its own parameters; the answer of each one.

    `patience`: seconds after which an instance without an answer counts as failed; `waits` gets
    what is waited for. Raises KilnError (exit status 1) if Systems Manager refuses.
    """
    deadline = time.monotonic() + patience
    ids = [item for batch, _ in batches for item in batch]
    sent = {
        _send(target, document, batch, parameters): list(batch)
        for all_of_it, parameters in batches
        for batch in in_pages(all_of_it, _AT_ONCE)
    }
    answers: dict[str, CommandAnswer] = {}
    looked = time.monotonic()
    while True:
        for command, batch in sent.items():
            if any(item not in answers for item in batch):
                answers |= _ended(target, command)
        pending = [instance_id for instance_id in ids if instance_id not in answers]
        if pending and time.monotonic() - looked > _LOOK:
            looked = time.monotonic()
            lost = lost_machines(target, pending)
            answers |= {
                instance_id: CommandAnswer(False, why=f"is {lost[instance_id]}")
                for instance_id in lost
            }
            pending = [instance_id for instance_id in pending if instance_id not in lost]
        if not pending:
            return answers
        if time.monotonic() > deadline:
            late = f"Systems Manager had no answer of it after {patience:.0f} s"
            return answers | {
                instance_id: CommandAnswer(False, why=late) for instance_id in pending
            }
        waits(f"{document.name} on {named(pending)}")
        time.sleep(max(target.poll_seconds, _POLL))


def reminding(say: Callable[[str], None]) -> Callable[[str], None]:
    """A function that prints what is waited for: first after a moment, then every 30 s."""
    last_message = time.monotonic() - _REMINDER + _MOMENT

    def waits(text: str) -> None:
        nonlocal last_message
        if time.monotonic() - last_message >= _REMINDER:
            last_message = time.monotonic()
            say(f"  waiting for {text}")

    return waits


def named(ids: Sequence[str], shown: int = 4) -> str:
    """Instances for a message: the first ones, and how many more."""
    more = f" and {len(ids) - shown} more" if len(ids) > shown else ""
    return ", ".join(ids[:shown]) + more


def _send(
    target: Target,
    document: CommandDocument,
    ids: Sequence[str],
    parameters: Mapping[str, Sequence[str]],
) -> str:
    exact: dict[str, Any] = {}
    if document.sha256:
        exact = {
            "DocumentVersion": document.version,
            "DocumentHash": document.sha256,
            "DocumentHashType": "Sha256",
        }
    client: Any = aws.ssm(target)
    with aws.explained(f"{document.name} could not be sent to {named(ids)}"):
        # Targets and not InstanceIds: one instance that is gone would refuse the command of all.
        answer = client.send_command(
            DocumentName=document.name,
            Targets=[{"Key": "InstanceIds", "Values": list(ids)}],
            Parameters={name: list(values) for name, values in parameters.items()},
            MaxConcurrency=str(_AT_ONCE),
            MaxErrors="100%",
            TimeoutSeconds=_DELIVERY,
            Comment="AMI Kiln fleet",
            **exact,
        )
    return str(answer["Command"]["CommandId"])


def _ended(target: Target, command: str) -> dict[str, CommandAnswer]:
    """The answers of a command that are there."""
    client: Any = aws.ssm(target)
    with aws.explained(f"the answers to command {command} could not be read"):
        ended = [
            invocation
            for page in client.get_paginator("list_command_invocations").paginate(
                CommandId=command, Details=True, PaginationConfig={"PageSize": _AT_ONCE}
            )
            for invocation in page["CommandInvocations"]
        ]
    return {str(item["InstanceId"]): _answer(item) for item in ended if item["Status"] in _FINAL}


def _answer(described: Any) -> CommandAnswer:
    outputs = [(str(p["Status"]), str(p.get("Output", ""))) for p in described["CommandPlugins"]]
    errors = message("systems_manager", "errors_begin")
    output = "\n".join(errors.split(text)[0].strip() for _, text in outputs).strip()
    if described["Status"] == "Success":
        return CommandAnswer(True, output)
    failed = [text for status, text in outputs if status not in ("Success", "Pending") and text]
    return CommandAnswer(
        False, output, _last_words(failed[0] if failed else described["StatusDetails"])
    )


def _last_words(text: str) -> str:
    """Why a step failed, in a line: what it printed as an error, or its last lines."""
    marked = [line.partition("ERROR: ")[2] for line in text.splitlines() if "ERROR: " in line]
    if marked:
        return "; ".join(dict.fromkeys(marked))
    lines = [line.strip() for line in text.splitlines()]
    of_the_service = [message("systems_manager", name) for name in ("errors_begin", "failed")]
    kept = [
        line
        for line in lines
        if line and not any(pattern.search(line) for pattern in of_the_service)
    ]
    return "; ".join(kept[-2:]) or "no output"
