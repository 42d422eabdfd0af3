"""What instances start with besides their image, by the names that it has in the account."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from kiln.base.errors import KilnError
from kiln.base.vocabulary import INSTANCE_PROFILE, RESERVATION_ID, TAG_VALUE, Form

_FORMS: dict[str, Form] = {
    "instance_profile": INSTANCE_PROFILE,
    # https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreatePlacementGroup.html
    "placement_group": Form(TAG_VALUE.pattern, "the name of a placement group"),
    "capacity_reservation": RESERVATION_ID,
    "capacity_block": RESERVATION_ID,
}


@dataclass(frozen=True)
class LaunchOptions:
    """An instance profile, a placement group, a capacity reservation or a capacity block; "" for
    none. A capacity block is a reservation that instances must ask for as a market of its own.
    """

    instance_profile: str = ""
    placement_group: str = ""
    capacity_reservation: str = ""
    capacity_block: str = ""

    @property
    def reservation(self) -> str:
        """The id of the reservation or block."""
        return self.capacity_reservation or self.capacity_block

    def launch_data(self) -> dict[str, Any]:
        """The part of LaunchTemplateData.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-launch.html
        """
        data: dict[str, Any] = {}
        if self.instance_profile:
            data["IamInstanceProfile"] = {"Name": self.instance_profile}
        if self.placement_group:
            data["Placement"] = {"GroupName": self.placement_group}
        if self.reservation:
            target = {"CapacityReservationId": self.reservation}
            data["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if self.capacity_block:
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        return data


NO_OPTIONS = LaunchOptions()


def flags_given(options: LaunchOptions) -> list[str]:
    """The flags of what is not empty."""
    return [
        f"--{each.name.replace('_', '-')}"
        for each in fields(options)
        if getattr(options, each.name)
    ]


def checked_options(**flags: str | None) -> LaunchOptions:
    """From flags. Raises KilnError (exit status 2) for what cannot be such a name or id."""
    for name, value in flags.items():
        if value is not None:
            _FORMS[name].required(value, f"--{name.replace('_', '-')}")
    options = LaunchOptions(**{name: value for name, value in flags.items() if value})
    if options.capacity_reservation and options.capacity_block:
        raise KilnError("instances start in a capacity reservation or in a block, not both")
    return options
