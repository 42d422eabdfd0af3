"""Which launch comes next when EC2 has no capacity for one: types × subnets, in order, and the
capacity reservation that serves some of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kiln.base.account import Account
from kiln.base.errors import operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.facts.tables import message

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef, FilterTypeDef

# EC2's and its fleets' answers to a launch for which there is no capacity just now, or no quota:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
# A reservation that is full: https://github.com/hashicorp/terraform-provider-aws/pull/35745
_OF_THE_TYPE = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "ReservationCapacityExceeded")
_NO_CAPACITY = re.compile(
    rf"\b({'|'.join(_OF_THE_TYPE)}|InsufficientInstanceCapacity|UnfulfillableCapacity"
    r"|SpotMaxPriceTooLow|InsufficientFreeAddressesInSubnet)\b"
)


@dataclass(frozen=True)
class Launch:
    """A type, the subnet in which it is tried (None: a default one), and the capacity reservation
    that it goes into."""

    instance_type: str
    subnet_id: str | None
    reservation: str | None = None

    def __str__(self) -> str:
        return f"{self.instance_type}{f' in {self.subnet_id}' if self.subnet_id else ''}"


@dataclass(frozen=True)
class Try:
    """A launch that EC2 was asked for. `market` is on-demand, spot or the id of a capacity
    reservation, `answer` EC2's when it had no capacity; "" if it had."""

    stage: Literal["bake", "verify"]
    instance_type: str
    subnet_id: str | None
    market: str
    answer: str


def market_of(spot: bool, reservation: str | None) -> str:
    """What a launch is charged to, in a word."""
    return reservation or ("spot" if spot else "on-demand")


def launches(
    account: Account, target: Target, types: Sequence[str], subnets: Sequence[str | None]
) -> list[Launch]:
    """All launches in the order in which they are tried: a type in each subnet, then the next.

    Instances of the type that the settings' reservation is for go into it, so only into subnets of
    its availability zone.
    """
    wanted = account.capacity_reservation_id
    reservation = _active(wanted, target) if wanted else None
    launches: list[Launch] = []
    for kind in types:
        if reservation and kind == reservation["InstanceType"]:
            inside = _in_zone(reservation, target, subnets)
            launches += [Launch(kind, subnet, wanted) for subnet in inside]
        else:
            launches += [Launch(kind, subnet) for subnet in subnets]
    return launches


def _active(wanted: str, target: Target) -> CapacityReservationTypeDef:
    with aws.explained(f"{wanted} could not be looked up in {target.region}"):
        answer = aws.ec2(target).describe_capacity_reservations(CapacityReservationIds=[wanted])
    for reservation in answer["CapacityReservations"]:
        if reservation["State"] == "active":
            return reservation
    raise operation_failed(
        f"{wanted} is not an active capacity reservation in {target.region}",
        hint="aws ec2 describe-capacity-reservations lists the account's",
    )


def _in_zone(
    reservation: CapacityReservationTypeDef, target: Target, subnets: Sequence[str | None]
) -> list[str]:
    """The subnets in the reservation's zone; the default one of the zone if none is named."""
    # A zone's name differs from account to account, and a reservation may be another account's.
    zone = reservation["AvailabilityZoneId"]
    named = [subnet for subnet in subnets if subnet is not None]
    default: list[FilterTypeDef] = [
        {"Name": "availability-zone-id", "Values": [zone]},
        {"Name": "default-for-az", "Values": ["true"]},
    ]
    with aws.explained("the subnets could not be looked up"):
        client = aws.ec2(target)
        if named:
            answer = client.describe_subnets(SubnetIds=named)["Subnets"]
        else:
            answer = client.describe_subnets(Filters=default)["Subnets"]
    zones = {subnet["SubnetId"]: subnet["AvailabilityZoneId"] for subnet in answer}
    inside = [subnet for subnet in named or zones if zones.get(subnet) == zone]
    if inside:
        return inside
    where = ", ".join(f"{subnet} ({zones.get(subnet)})" for subnet in named)
    raise operation_failed(
        f"{reservation['CapacityReservationId']} is in {reservation['AvailabilityZone']} ({zone}), "
        f"and no subnet of the settings is: {where or 'no default one'}",
        hint="name a subnet of that zone: aws ec2 describe-subnets --filters "
        f"Name=availability-zone-id,Values={zone}",
    )


def no_capacity(answer: str) -> bool:
    """Whether an error of EC2 says that another launch may succeed."""
    return bool(_NO_CAPACITY.search(answer) or message("ec2", "not_in_zone").search(answer))


def after(left: Sequence[Launch], answer: str) -> list[Launch]:
    """The launches left to try after this answer to the first. A quota and the free capacity of a
    reservation do not depend on the subnet, so one refusal drops every launch of that type."""
    tried, *rest = left
    if any(code in answer for code in _OF_THE_TYPE):
        return [pool for pool in rest if pool.instance_type != tried.instance_type]
    return rest
