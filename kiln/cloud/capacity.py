"""Which launch comes next when EC2 has no capacity for one: types × subnets, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kiln.facts.tables import message

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


def launches(types: Sequence[str], subnets: Sequence[str | None]) -> list[Launch]:
    """All launches in the order in which they are tried: a type in each subnet, then the next."""
    return [Launch(kind, subnet) for kind in types for subnet in subnets]


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
