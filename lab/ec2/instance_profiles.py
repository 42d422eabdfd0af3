"""Instance profiles: at launch, by template or fleet, and later.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/iam-roles-for-amazon-ec2.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import moto.ec2.models.iam_instance_profile as moto_profiles
import moto.ec2.responses.instances as moto_instances_responses
import moto.ec2.utils as moto_ec2_utils
from moto.core.exceptions import ServiceException

from lab.ec2.calls import error


def install() -> None:
    """Correct moto's associations. Call it once per process."""
    for module in (moto_profiles, moto_instances_responses):
        module.filter_iam_instance_profiles = _with_ec2_error(module.filter_iam_instance_profiles)
    associations = moto_profiles.IamInstanceProfileAssociationBackend
    associations.replace_iam_instance_profile_association = _replacing(
        associations.replace_iam_instance_profile_association
    )


def named(parameters: dict[str, Any]) -> bool:
    """Whether a launch names a profile itself: moto then gives it to the first instance, later."""
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


def _with_ec2_error(find: Callable[..., Any]) -> Callable[..., Any]:
    """moto: IAM's NoSuchEntity. EC2's error:
    https://github.com/hashicorp/terraform-provider-aws/issues/27516
    """

    def profile(account: str, partition: str, **named: Any) -> Any:
        try:
            entry = find(account, partition=partition, **named)
        except ServiceException:
            entry = None
        if entry is None:
            by = "arn" if named["iam_instance_profile_arn"] else "name"
            raise error(
                "InvalidParameterValue",
                f"Value ({named[f'iam_instance_profile_{by}']}) for parameter "
                f"iamInstanceProfile.{by} is invalid. Invalid IAM Instance Profile {by}",
            )
        return entry

    return profile


def _replacing(replace: Callable[..., Any]) -> Callable[..., Any]:
    """moto keeps the association's id. EC2 makes a new association:
    https://docs.aws.amazon.com/cli/latest/reference/ec2/replace-iam-instance-profile-association.html
    """

    def replace_with_new_id(backend: Any, *arguments: Any, **named: Any) -> Any:
        association = replace(backend, *arguments, **named)
        association.association_id = moto_ec2_utils.random_iam_instance_profile_association_id()
        return association

    return replace_with_new_id
