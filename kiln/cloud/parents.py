"""The parent AMI of a recipe, looked up when a build is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.base.errors import OPERATION_FAILED, KilnError
from kiln.base.recipe import Recipe
from kiln.base.vocabulary import read_time, utc_now
from kiln.cloud import aws
from kiln.cloud.target import ParentAmi, Target


class ParentNotFoundError(KilnError):
    """EC2 or Systems Manager answers that there is no such parent AMI. Exit status 1."""


def resolve(recipe: Recipe, target: Target) -> ParentAmi:
    """The newest parent AMI of a recipe. Raises ParentNotFoundError if there is none."""
    source = recipe.source_ami
    if parent := target.hooks.parent(recipe):
        return parent
    if source.ssm_parameter:
        images = _images(target, ImageIds=[_from_parameter(recipe, target)])
    else:
        images = _images(
            target,
            Owners=[source.owner],
            # A pinned parent is deprecated some day: AL2023's after 90 days.
            IncludeDeprecated=True,
            Filters=[
                {"Name": "name", "Values": [source.name]},
                {"Name": "architecture", "Values": [recipe.arch]},
                {"Name": "state", "Values": ["available"]},
            ],
        )
    if not images:
        raise _not_found(recipe, target, "no image matches")
    # What the vendor has withdrawn may be newer than what is current.
    current = [image for image in images if not _is_deprecated(image)]
    newest = max(current or images, key=lambda image: str(image["CreationDate"]))
    return _parent(newest, found_by=str(source))


def once() -> Callable[[Recipe, Target], ParentAmi]:
    """A `resolve` that asks once for each parent AMI in a region, however many recipes share it."""
    parents: dict[object, ParentAmi] = {}

    def find(recipe: Recipe, target: Target) -> ParentAmi:
        key = (recipe.source_ami, recipe.arch, target.region)
        if key not in parents:
            parents[key] = resolve(recipe, target)
        return parents[key]

    return find


def again(parent: ParentAmi, recipe: Recipe, target: Target) -> ParentAmi:
    """The parent AMI of an earlier build, by its id. Raises ParentNotFoundError if it is gone."""
    if target.hooks.parent(recipe):
        return parent  # as long as the target is not up; the build asks again
    images = _images(target, ImageIds=[parent.ami_id])
    if not images:
        raise ParentNotFoundError(
            f"the parent AMI {parent.ami_id} ({parent.name or 'of unknown name'}) no longer exists "
            f"in {target.region}",
            hint="vendors remove their old AMIs: copy a parent that must last into an account of "
            "yours, and name that copy in `distros`",
            exit_status=OPERATION_FAILED,
        )
    return _parent(images[0], found_by="the id in the record")


def _parent(image: dict[str, Any], found_by: str) -> ParentAmi:
    name, created = str(image.get("Name", "")), str(image.get("CreationDate", ""))
    return ParentAmi(str(image["ImageId"]), name, created, found_by)


def _is_deprecated(image: dict[str, Any]) -> bool:
    until = image.get("DeprecationTime")
    return bool(until) and read_time(str(until)) <= utc_now()


def _from_parameter(recipe: Recipe, target: Target) -> str:
    client = aws.ssm(target)
    with aws.explained("the parent AMI could not be looked up"):
        try:
            answer = client.get_parameter(Name=str(recipe.source_ami.ssm_parameter))
        except client.exceptions.ParameterNotFound:
            raise _not_found(recipe, target, "SSM has no such parameter") from None
    return str(answer["Parameter"]["Value"])


def _images(target: Target, **query: Any) -> list[dict[str, Any]]:
    """The images that EC2 describes; none for an id that it does not have."""
    from botocore.exceptions import ClientError

    with aws.explained("the parent AMI could not be looked up"):
        try:
            return [dict(image) for image in aws.ec2(target).describe_images(**query)["Images"]]
        except ClientError as error:
            if aws.is_gone(error):
                return []
            raise


def _not_found(recipe: Recipe, target: Target, why: str) -> ParentNotFoundError:
    return ParentNotFoundError(
        f"source AMI not found for {recipe.name} in {target.region}: {recipe.source_ami}: {why}",
        hint=f"see `parents` of {recipe.distro.id} in kiln/facts/knowledge/distros.yaml; `distros` "
        f"in {recipe.row.file} can override it",
        exit_status=OPERATION_FAILED,
    )
