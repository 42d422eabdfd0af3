"""Instance profiles: at launch, by template or fleet, and later.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/iam-roles-for-amazon-ec2.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.utils import filter_iam_instance_profiles

from lab.moto.ec2.calls import error


def named(parameters: dict[str, Any]) -> bool:
    """Return True if a launch names a profile itself: moto then gives it to the first instance,
    later."""
    return bool(
        parameters.get("iam_instance_profile_name") or parameters.get("iam_instance_profile_arn")
    )


def associate(
    backend: Any, launched: Sequence[Any], parameters: dict[str, Any], *, by_call: bool
) -> None:
    """Give each new instance its profile: the call's (`by_call`), its template's or fleet's."""
    name, arn = (
        parameters.get("iam_instance_profile_name"),
        parameters.get("iam_instance_profile_arn"),
    )
    of_fleet = parameters.get("iam_instance_profile")
    if not (name or arn) and of_fleet:
        if isinstance(of_fleet, str):  # a spot request's
            arn = of_fleet
        else:
            name, arn = of_fleet.get("Name"), of_fleet.get("Arn")
    if name or arn:
        for instance in launched[1:] if by_call else launched:
            backend.associate_iam_instance_profile(instance.id, name, arn)


def require(backend: Any, name: str | None, arn: str | None) -> None:
    """Raise EC2's error for a profile that the account does not have; moto's is IAM's.

    https://github.com/hashicorp/terraform-provider-aws/issues/27516
    """
    if not (name or arn):
        return
    try:
        found = filter_iam_instance_profiles(
            backend.account_id,
            partition=backend.partition,
            iam_instance_profile_arn=arn,
            iam_instance_profile_name=name,
        )
    except ServiceException:
        found = None
    if found is None:
        by = "arn" if arn else "name"
        raise error(
            "InvalidParameterValue",
            f"Value ({arn or name}) for parameter iamInstanceProfile.{by} is invalid. Invalid IAM "
            f"Instance Profile {by}",
        )
