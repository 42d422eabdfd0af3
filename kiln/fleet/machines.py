"""The instances that `--targets` means: found in EC2, asked and changed by Run Command.

Systems Manager delivers to fifty at once and ends what takes too long, by the timeouts of the
document's steps. What it cannot do is wait for CloudWatch: `install` has waves for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.facts.tables import message

# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html
_PER_FILTER = 200
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_DescribeInstanceInformation.html
_MANAGED_PER_PAGE = 50
_UP = ("pending", "running")
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html (Targets)
_AT_ONCE = 50
_UNDER_WAY = ("Pending", "InProgress", "Delayed", "Cancelling")
# Seconds that a command waits for its instance, and between two looks, at least.
_DELIVERY, _POLL = 120, 0.5
# Seconds that a command has to end when it was cancelled.
_CANCELLING = 60.0
# Seconds between two looks whether its instances still run: Systems Manager does not say it.
_LOOK = 15.0
# Seconds between two lines about what is waited for; the first one comes after a moment.
_REMINDER, _MOMENT = 30.0, 5.0
Item = TypeVar("Item")
Say = Callable[[str], None]
Filters = Mapping[str, Sequence[str]]
# The arguments of SendCommand that name a document; one of our own by version and hash.
Document = Mapping[str, str]


@dataclass(frozen=True)
class FleetMachine:
    """An instance as EC2 knows it. `role` is the name of its instance profile, "" without one."""

    instance_id: str
    image_id: str
    instance_type: str
    state: str
    role: str
    name: str

    @property
    def runs(self) -> bool:
        """True if it is up, or about to be."""
        return self.state in _UP


@dataclass(frozen=True)
class CommandAnswer:
    """The outcome of a command on one instance; `why` says why it failed."""

    ok: bool
    output: str = ""
    why: str = ""


Batch = tuple[Sequence[str], Mapping[str, Sequence[str]]]
NOT_ENDED = CommandAnswer(False, why="its command has not ended, though it was cancelled")


def parse_targets(text: str) -> Filters:
    """Return the filters of EC2 for `tag:Team=ml`, `tag:Team=ml,vision`, `i-…,i-…` or `all`."""
    if text == "all":
        return {}
    key, _, values = text.removeprefix("tag:").partition("=")
    if text.startswith("tag:") and all(values.split(",")):
        vocabulary.TAG_KEY.required(key, "--targets: the key")
        for value in values.split(","):
            vocabulary.TAG_VALUE.required(value, f"--targets: the value of {key}")
        return {f"tag:{key}": values.split(",")}
    ids = list(dict.fromkeys(text.split(",")))
    if wrong := [each for each in ids if not vocabulary.INSTANCE_ID.fits(each)]:
        raise KilnError(
            f"--targets {vocabulary.shown(wrong[0])} is not known",
            hint="write tag:KEY=VALUE, the ids of instances (i-…,i-…), or all",
        )
    return {"instance-id": ids}


def find_machines(target: Target, filters: Filters) -> list[FleetMachine]:
    """Return the instances that run, or those with these ids in any state and in their order."""
    if ids := filters.get("instance-id"):
        by_id = _by_id(target, ids)
        if unknown := [key for key in ids if key not in by_id]:
            raise KilnError(f"--targets: {', '.join(unknown)} is not in {target.where}")
        return [by_id[key] for key in ids]
    found = _described(target, {"instance-state-name": _UP, **filters})
    return sorted(found, key=lambda machine: machine.instance_id)


def lost_machines(target: Target, ids: Sequence[str]) -> dict[str, str]:
    """Return those that do not run any more → EC2's word for their state, else `gone`."""
    there = _by_id(target, ids)
    return {
        key: there[key].state if key in there else "gone"
        for key in ids
        if key not in there or not there[key].runs
    }


def managed_machines(target: Target, ids: Sequence[str]) -> dict[str, Any]:
    """Return the instances that ever registered with Systems Manager, as it knows them."""
    with aws.explained(f"Systems Manager could not be asked in {target.region}"):
        return {
            str(info["InstanceId"]): info
            for batch in in_pages(ids, _MANAGED_PER_PAGE)
            for info in aws.paginated(
                aws.ssm(target),
                "describe_instance_information",
                "InstanceInformationList",
                Filters=[{"Key": "InstanceIds", "Values": list(batch)}],
                PaginationConfig={"PageSize": _MANAGED_PER_PAGE},
            )
        }


def in_pages(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Return the items, so many at once."""
    return (items[start : start + size] for start in range(0, len(items), size))


def run_command(
    target: Target,
    document: Document,
    batches: Sequence[Batch],
    *,
    patience: float,
    say: Say,
) -> dict[str, CommandAnswer]:
    """Run a document on instances, each batch with its own parameters; return each one's answer.

    A command that takes longer than `patience` seconds is cancelled; where it does not end even
    then, the answer is NOT_ENDED. An instance that is gone has failed at once.
    """
    ssm = aws.ssm(target)
    commands = {
        _send(target, document, ids, parameters): ids
        for all_ids, parameters in batches
        for ids in in_pages(all_ids, _AT_ONCE)
    }
    answers: dict[str, CommandAnswer] = {}
    waits, began = reminding(say), time.monotonic()
    deadline, look, cancelled = began + patience, began + _LOOK, False
    while True:
        pending = {}
        for command, ids in commands.items():
            if not answers.keys() >= set(ids):
                answers = _answers(target, command) | answers
                if waiting := [key for key in ids if key not in answers]:
                    pending[command] = waiting
        waiting = [key for keys in pending.values() for key in keys]
        if not pending:
            return {key: answers[key] for ids in commands.values() for key in ids}
        late = time.monotonic() > deadline
        if late and cancelled:
            answers |= dict.fromkeys(waiting, NOT_ENDED)
            continue
        if late:
            say(
                f"cancels {document['DocumentName']} on {named(waiting)}: {patience:.0f} s are over"
            )
            for command in pending:
                _cancel(ssm, command, say)
            cancelled, deadline = True, time.monotonic() + _CANCELLING
        if time.monotonic() > look:
            gone = lost_machines(target, waiting)
            answers |= {key: CommandAnswer(False, why=f"it is {gone[key]}") for key in gone}
            look = time.monotonic() + _LOOK
        waits(f"{document['DocumentName']} on {named(waiting)}")
        time.sleep(max(target.poll_seconds, _POLL))


def _cancel(ssm: Any, command: str, say: Say) -> None:
    """Cancel a command. Where that is refused its machines count as not ended, and others go on."""
    try:
        with aws.explained(f"command {command} could not be cancelled"):
            ssm.cancel_command(CommandId=command)
    except KilnError as error:
        say(str(error))


def reminding(say: Say) -> Say:
    """Return a function that prints what is waited for: first after a moment, then every 30 s."""
    last_message = time.monotonic() - _REMINDER + _MOMENT

    def waits(text: str) -> None:
        nonlocal last_message
        if time.monotonic() - last_message >= _REMINDER:
            last_message = time.monotonic()
            say(f"  waiting for {text}")

    return waits


def named(ids: Sequence[str], shown: int = 4) -> str:
    """Return instances for a message: the first ones, and how many more."""
    more = f" and {len(ids) - shown} more" if len(ids) > shown else ""
    return ", ".join(ids[:shown]) + more


def _by_id(target: Target, ids: Sequence[str]) -> dict[str, FleetMachine]:
    return {
        machine.instance_id: machine
        for batch in in_pages(ids, _PER_FILTER)
        for machine in _described(target, {"instance-id": batch})
    }


def _described(target: Target, filters: Filters) -> list[FleetMachine]:
    request: Any = [{"Name": name, "Values": list(values)} for name, values in filters.items()]
    with aws.explained(f"the instances could not be listed in {target.region}"):
        ec2 = aws.ec2(target)
        key = "Reservations[].Instances"
        return [*map(_machine, aws.paginated(ec2, "describe_instances", key, Filters=request))]


def _machine(described: Any) -> FleetMachine:
    profile = str(described.get("IamInstanceProfile", {}).get("Arn", ""))
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
    return FleetMachine(
        instance_id=str(described["InstanceId"]),
        image_id=str(described["ImageId"]),
        instance_type=str(described["InstanceType"]),
        state=str(described["State"]["Name"]),
        role=profile.rpartition("/")[2],
        name=tags.get("Name", ""),
    )


def _send(
    target: Target,
    document: Document,
    ids: Sequence[str],
    parameters: Mapping[str, Sequence[str]],
) -> str:
    client: Any = aws.ssm(target)
    with aws.explained(f"{document['DocumentName']} could not be sent to {named(ids)}"):
        # Targets and not InstanceIds: one instance that is gone would refuse the command of all.
        answer = client.send_command(
            **document,
            Targets=[{"Key": "InstanceIds", "Values": list(ids)}],
            Parameters={name: list(values) for name, values in parameters.items()},
            MaxConcurrency=str(_AT_ONCE),
            MaxErrors="100%",
            TimeoutSeconds=_DELIVERY,
            Comment="AMI Kiln fleet",
        )
    return str(answer["Command"]["CommandId"])


def _answers(target: Target, command: str) -> dict[str, CommandAnswer]:
    """Return the answers of a command that are there."""
    listed = {"CommandId": command, "Details": True, "PaginationConfig": {"PageSize": _AT_ONCE}}
    with aws.explained(f"the answers to command {command} could not be read"):
        return {
            str(invocation["InstanceId"]): _answer(invocation)
            for invocation in aws.paginated(
                aws.ssm(target), "list_command_invocations", "CommandInvocations", **listed
            )
            if invocation["Status"] not in _UNDER_WAY
        }


def _answer(invocation: Any) -> CommandAnswer:
    """Return an invocation as an answer; a failed step says why by its marked or last lines."""
    steps = [(step["Status"], step.get("Output", "")) for step in invocation["CommandPlugins"]]
    errors = message("systems_manager", "errors_begin")
    output = "\n".join(errors.split(text)[0].strip() for _, text in steps).strip()
    if invocation["Status"] == "Success":
        return CommandAnswer(True, output)
    failed = [text for status, text in steps if status not in ("Success", "Pending") and text]
    lines = (failed[0] if failed else invocation["StatusDetails"]).splitlines()
    marked = [line.partition("ERROR: ")[2] for line in lines if "ERROR: " in line]
    of_the_service = (errors, message("systems_manager", "failed"))
    last = [
        line.strip()
        for line in lines
        if line.strip() and not any(pattern.search(line) for pattern in of_the_service)
    ][-2:]
    return CommandAnswer(False, output, "; ".join(dict.fromkeys(marked or last)) or "no output")
