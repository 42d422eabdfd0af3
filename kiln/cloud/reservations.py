"""A capacity reservation, and which launches it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kiln.base.account import Account
from kiln.base.errors import operation_failed
from kiln.cloud import aws, capacity
from kiln.cloud.capacity import Launch
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef, FilterTypeDef


def launches_of(
    account: Account, target: Target, types: Sequence[str], subnets: Sequence[str | None]
) -> list[Launch]:
    """All launches in the order in which they are tried. Instances of the type that the settings'
    reservation is for go into it, so only into subnets of its availability zone.

    Raises KilnError (exit status 1) if AWS refuses, if the reservation does not exist or is not
    active, or if none of the subnets is in its zone.
    """
    plain = capacity.launches(types, subnets)
    wanted = account.capacity_reservation_id
    if wanted is None:
        return plain
    reservation = _active(wanted, target)
    kind = reservation["InstanceType"]
    if kind not in types:
        return plain
    inside = _in_zone(reservation, target, subnets)
    launches: list[Launch] = []
    for each in types:
        if each == kind:
            launches += [Launch(kind, subnet, wanted) for subnet in inside]
        else:
            launches += capacity.launches([each], subnets)
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
