"""The parent AMI of a recipe, looked up when a build is planned."""

from __future__ import annotations

from collections.abc import Callable

from kiln.base.errors import OPERATION_FAILED, KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.base.times import read_time, utc_now
from kiln.cloud import aws
from kiln.cloud.target import ParentAmi, Target


class ParentNotFoundError(KilnError):
    """EC2 or Systems Manager answers that there is no such parent AMI. Exit status 1."""


def resolve(recipe: Recipe, target: Target) -> ParentAmi:
    """Look up the parent AMI.

    Raises ParentNotFoundError if there is none, with the look-up that failed, and KilnError (exit
    status 1) if AWS did not say.
    """
    source = recipe.source_ami
    parent = target.parent_without_request(recipe)
    if parent:
        return parent
    if source.ssm_parameter:
        ami_id = _from_parameter(recipe, target)
        images = _describe(recipe, target, ImageIds=[ami_id])
    else:
        images = _describe(
            recipe,
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
    return ParentAmi(
        ami_id=str(newest["ImageId"]),
        name=str(newest.get("Name", "")),
        created=str(newest["CreationDate"]),
        found_by=str(source),
    )


def _is_deprecated(image: dict[str, object]) -> bool:
    until = image.get("DeprecationTime")
    return bool(until) and read_time(str(until)) <= utc_now()


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
    """The parent AMI of an earlier build, by its id.

    Raises KilnError (exit status 1) if it no longer exists.
    """
    if target.parent_without_request(recipe):
        return parent  # the lab answers only while it is up; the build asks again then
    with aws.explained("the parent AMI could not be looked up"):
        images = _with_id(parent.ami_id, target)
    if not images:
        raise operation_failed(
            f"the parent AMI {parent.ami_id} ({parent.name or 'of unknown name'}) no longer exists "
            f"in {target.region}",
            hint="vendors remove their old AMIs: copy a parent that must last into an account of "
            "yours, and name that copy in `distros`"
            + (f"; {target.missing_parent_hint}" if target.missing_parent_hint else ""),
        )
    return ParentAmi(
        ami_id=parent.ami_id,
        name=str(images[0].get("Name", "")),
        created=str(images[0].get("CreationDate", "")),
        found_by="the id in the record",
    )


def _with_id(ami_id: str, target: Target) -> list[dict[str, object]]:
    from botocore.exceptions import ClientError

    try:
        answer = aws.ec2(target).describe_images(ImageIds=[ami_id])
    except ClientError as error:
        if aws.is_gone(error):
            return []
        raise
    return [dict(image) for image in answer["Images"]]


def _from_parameter(recipe: Recipe, target: Target) -> str:
    from botocore.exceptions import ClientError

    with aws.explained("the parent AMI could not be looked up"):
        try:
            answer = aws.ssm(target).get_parameter(Name=str(recipe.source_ami.ssm_parameter))
        except ClientError as error:
            if error.response["Error"].get("Code") == "ParameterNotFound":
                raise _not_found(recipe, target, "SSM has no such parameter") from None
            raise
    return str(answer["Parameter"]["Value"])


def _describe(recipe: Recipe, target: Target, **query: object) -> list[dict[str, object]]:
    from botocore.exceptions import ClientError

    with aws.explained("the parent AMI could not be looked up"):
        try:
            answer = aws.ec2(target).describe_images(**query)  # type: ignore[arg-type]
        except ClientError as error:
            if aws.is_gone(error):
                raise _not_found(recipe, target, error.response["Error"]["Message"]) from None
            raise
    return list(answer["Images"])  # type: ignore[arg-type]


def _not_found(recipe: Recipe, target: Target, why: str) -> ParentNotFoundError:
    hint = (
        f"see `parents` of {recipe.distro.id} in kiln/facts/knowledge/distros.yaml; `distros` in "
        f"{recipe.row.file} can override it"
    )
    if target.missing_parent_hint:
        hint += f"; {target.missing_parent_hint}"
    return ParentNotFoundError(
        f"source AMI not found for {recipe.name} in {target.region}: {recipe.source_ami}: {why}",
        hint=hint,
        exit_status=OPERATION_FAILED,
    )
