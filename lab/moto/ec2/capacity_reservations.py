"""Capacity reservations: a launch that names one is served from it, as long as it has room.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateCapacityReservation.html
A launch that names none is not counted against an open reservation here.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from moto.core.utils import utcnow

from lab.moto.ec2.calls import Request, call, error, missing


@dataclass
class _Reservation:
    id: str
    kind: str
    platform: str
    zone: Any  # moto's
    count: int
    criteria: str
    tags: list[dict[str, str]]
    made: Any


# By account and region.
_KEPT: dict[tuple[str, str], dict[str, _Reservation]] = {}


@call("CreateCapacityReservation")
def _create(request: Request) -> dict[str, Any]:
    parameters = request.parameters
    named = parameters.get("AvailabilityZone") or parameters.get("AvailabilityZoneId")
    if not named:
        raise missing("AvailabilityZone")
    zones = request.backend.describe_availability_zones()
    zone = next((zone for zone in zones if named in (zone.name, zone.zone_id)), None)
    if zone is None:
        raise error("InvalidParameterValue", f"Invalid availability zone: [{named}]")
    specified = parameters.get("TagSpecifications") or []
    made = _Reservation(
        f"cr-{secrets.token_hex(9)[:17]}",
        parameters["InstanceType"],
        parameters["InstancePlatform"],
        zone,
        int(parameters["InstanceCount"]),
        parameters.get("InstanceMatchCriteria") or "open",
        [tag for entry in specified for tag in entry.get("Tags") or []],
        utcnow(),
    )
    _of(request)[made.id] = made
    return {"CapacityReservation": _shown(request, made)}


@call("DescribeCapacityReservations")
def _describe(request: Request) -> dict[str, Any]:
    wanted = request.parameters.get("CapacityReservationIds") or list(_of(request))
    return {
        "CapacityReservations": [_shown(request, _reservation(request, name)) for name in wanted]
    }


def check_launch(request: Request, count: int) -> str | None:
    """The reservation that a launch of `count` instances names. Raises EC2's error if it cannot
    serve them, in whose words a wrong type and no room are the same (assumed: a wrong zone, too):
    https://github.com/hashicorp/terraform-provider-aws/issues/32458
    """
    specified = request.parameters.get("CapacityReservationSpecification") or {}
    target = specified.get("CapacityReservationTarget") or {}
    name = target.get("CapacityReservationId")
    if not name:
        return None
    reservation = _reservation(request, name)
    subnet = request.parameters.get("SubnetId")
    zone = request.backend.get_subnet(subnet).availability_zone if subnet else reservation.zone.name
    asked = (request.parameters.get("InstanceType"), zone)
    fits = asked == (reservation.kind, reservation.zone.name)
    if not fits or _left(request, reservation) < count:
        raise error(
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity "
            "for this request.",
        )
    return str(name)


def _of(request: Request) -> dict[str, _Reservation]:
    return _KEPT.setdefault((request.account, request.region), {})


def _reservation(request: Request, name: str) -> _Reservation:
    reservation = _of(request).get(name)
    if reservation is None:
        raise error(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation ID '{name}' does not exist",
        )
    return reservation


def _left(request: Request, reservation: _Reservation) -> int:
    served = [
        instance
        for instance in request.backend.all_instances()
        if getattr(instance, "capacity_reservation_id", None) == reservation.id
        and instance.state in ("pending", "running")
    ]
    return reservation.count - len(served)


def _shown(request: Request, reservation: _Reservation) -> dict[str, Any]:
    where = f"{request.region}:{request.account}:capacity-reservation/{reservation.id}"
    return {
        "CapacityReservationId": reservation.id,
        "CapacityReservationArn": f"arn:aws:ec2:{where}",
        "OwnerId": request.account,
        "InstanceType": reservation.kind,
        "InstancePlatform": reservation.platform,
        "AvailabilityZone": reservation.zone.name,
        "AvailabilityZoneId": reservation.zone.zone_id,
        "TotalInstanceCount": reservation.count,
        "AvailableInstanceCount": _left(request, reservation),
        "State": "active",
        "StartDate": reservation.made,
        "InstanceMatchCriteria": reservation.criteria,
        "Tags": reservation.tags,
    }
