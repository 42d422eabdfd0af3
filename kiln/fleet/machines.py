"""Which instances `--targets` means, and what EC2 and Systems Manager know of them.

Every question is asked for all of them, in pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.cloud import aws
from kiln.cloud.target import Target

# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html
_PER_PAGE, _PER_FILTER = 1000, 200
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_DescribeInstanceInformation.html
_MANAGED_PER_PAGE = 50
_RUNNING = "running"
Item = TypeVar("Item")


@dataclass(frozen=True)
class Selected:
    """What `--targets` says: ids, or a tag's key and values; neither means all that run."""

    ids: tuple[str, ...] = ()
    tag: str = ""
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.ids:
            return ",".join(self.ids)
        return f"tag:{self.tag}={','.join(self.values)}" if self.tag else "all"


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
        """Whether it is up, or about to be."""
        return self.state in (_RUNNING, "pending")


@dataclass(frozen=True)
class Managed:
    """What Systems Manager knows of an instance: Online or ConnectionLost, and its system."""

    ping: str
    system: str


def parse_targets(text: str) -> Selected:
    """`tag:Team=ml`, `tag:Team=ml,vision`, `i-…,i-…` or `all`.

    Raises KilnError (exit status 2) for other text.
    """
    if text == "all":
        return Selected()
    if text.startswith("tag:"):
        key, equals, values = text[4:].partition("=")
        if not equals or not values:
            raise KilnError(f"--targets {text} has no value", hint="write --targets tag:Team=ml")
        vocabulary.TAG_KEY.required(key, "--targets: the key")
        chosen = tuple(dict.fromkeys(values.split(",")))
        for value in chosen:
            vocabulary.TAG_VALUE.required(value, f"--targets: the value of {key}")
            if not value:
                raise KilnError(f"--targets {text}: a value between the commas is missing")
        return Selected(tag=key, values=chosen)
    ids = tuple(dict.fromkeys(text.split(",")))
    for instance_id in ids:
        if not vocabulary.INSTANCE_ID.fits(instance_id):
            raise KilnError(
                f"--targets {vocabulary.shown(instance_id)} is not known",
                hint="write tag:KEY=VALUE, the ids of instances (i-…,i-…), or all",
            )
    return Selected(ids=ids)


def find_machines(target: Target, selected: Selected) -> list[FleetMachine]:
    """The instances: those that run, or those with these ids in any state, in the order of the ids.

    Raises KilnError: exit status 2 for an id that the region does not have, 1 if EC2 refuses.
    """
    if selected.ids:
        by_id = {
            machine.instance_id: machine
            for batch in in_pages(selected.ids, _PER_FILTER)
            for machine in _described(target, [{"Name": "instance-id", "Values": list(batch)}])
        }
        unknown = [instance_id for instance_id in selected.ids if instance_id not in by_id]
        if unknown:
            raise KilnError(f"--targets: {', '.join(unknown)} is not in {target.where}")
        return [by_id[instance_id] for instance_id in selected.ids]
    filters = [{"Name": "instance-state-name", "Values": ["pending", _RUNNING]}]
    if selected.tag:
        filters.append({"Name": f"tag:{selected.tag}", "Values": list(selected.values)})
    return sorted(_described(target, filters), key=lambda entry: entry.instance_id)


def lost_machines(target: Target, ids: Sequence[str]) -> dict[str, str]:
    """Those that do not run any more → their state in EC2's word, `gone` where it knows none.

    Raises KilnError (exit status 1) if EC2 refuses.
    """
    reasons = {
        machine.instance_id: machine.state
        for batch in in_pages(ids, _PER_FILTER)
        for machine in _described(target, [{"Name": "instance-id", "Values": list(batch)}])
    }
    states = {instance_id: reasons.get(instance_id, "gone") for instance_id in ids}
    return {key: state for key, state in states.items() if state not in ("pending", _RUNNING)}


def managed_machines(target: Target, ids: Sequence[str]) -> dict[str, Managed]:
    """What Systems Manager knows of them; without those that never registered.

    Raises KilnError (exit status 1) if it refuses.
    """
    with aws.explained(f"Systems Manager could not be asked in {target.region}"):
        client: Any = aws.ssm(target)
        answers = [
            info
            for batch in in_pages(ids, _MANAGED_PER_PAGE)
            for page in client.get_paginator("describe_instance_information").paginate(
                Filters=[{"Key": "InstanceIds", "Values": list(batch)}],
                PaginationConfig={"PageSize": _MANAGED_PER_PAGE},
            )
            for info in page["InstanceInformationList"]
        ]
    return {
        str(answer["InstanceId"]): Managed(
            str(answer.get("PingStatus", "")),
            f"{answer.get('PlatformName', '')} {answer.get('PlatformVersion', '')}".strip(),
        )
        for answer in answers
    }


def in_pages(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items, so many at once."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _described(target: Target, filters: list[Any]) -> list[FleetMachine]:
    with aws.explained(f"the instances could not be listed in {target.region}"):
        pages = aws.ec2(target).get_paginator("describe_instances")
        return [
            _machine(instance)
            for page in pages.paginate(Filters=filters, PaginationConfig={"PageSize": _PER_PAGE})
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]


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
