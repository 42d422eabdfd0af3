"""A capacity reservation, and which launches it serves."""

from __future__ import annotations

from kiln.base.account import Account
from kiln.base.errors import operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target


def serving(account: Account, target: Target, instance_type: str) -> str | None:
    """The id of the settings' reservation if it is for instances of that type; None otherwise.

    Raises KilnError (exit status 1) if AWS refuses, or if it does not exist or is not active.
    """
    wanted = account.capacity_reservation_id
    if wanted is None:
        return None
    with aws.explained(f"{wanted} could not be looked up in {target.region}"):
        answer = aws.ec2(target).describe_capacity_reservations(CapacityReservationIds=[wanted])
    found = [
        reservation
        for reservation in answer["CapacityReservations"]
        if reservation["State"] == "active"
    ]
    if not found:
        raise operation_failed(
            f"{wanted} is not an active capacity reservation in {target.region}",
            hint="aws ec2 describe-capacity-reservations lists the account's",
        )
    return wanted if found[0]["InstanceType"] == instance_type else None
