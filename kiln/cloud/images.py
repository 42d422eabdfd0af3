"""AMIs as EC2 describes them, and the parent AMI of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import OPERATION_FAILED, KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.base.tags import LINE, RECIPE, RETIRING, RUN_ID
from kiln.base.vocabulary import as_time, read_time, utc_now
from kiln.cloud import aws
from kiln.cloud.target import ParentAmi, Target

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef


@dataclass(frozen=True)
class Image:
    """An AMI as DescribeImages answers. `reason` is EC2's for a failed one; times are aware."""

    region: str
    ami_id: str
    name: str
    state: str
    created: datetime
    tags: dict[str, str]
    snapshots: tuple[str, ...] = ()
    imds_v2: bool = False
    protected: bool = False
    deprecated: datetime | None = None
    # When an instance was last launched from it, by any account; EC2 says it a day late:
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ami-last-launched-time.html
    launched: datetime | None = None
    reason: str = ""

    @property
    def ours(self) -> bool:
        """True if AMI Kiln made it, or it is a copy of such an AMI: by its tags."""
        return vocabulary.RUN_ID.fits(self.tags.get(RUN_ID)) and vocabulary.RECIPE_NAME.fits(
            self.tags.get(RECIPE)
        )

    @property
    def line(self) -> str | None:
        """Its line; None if it was never published."""
        return self.tags.get(LINE)

    @property
    def retiring(self) -> bool:
        """True if `retire` has deprecated it."""
        return RETIRING in self.tags

    @property
    def is_deprecated(self) -> bool:
        """True if it is deprecated, by `retire` or because its date has passed."""
        passed = self.deprecated is not None and self.deprecated <= utc_now()
        return self.retiring or passed


def find_image(target: Target, ami_id: str) -> Image | None:
    """Return the AMI of that id in the target's region, disabled or not; None if it is gone."""
    with aws.explained(f"{ami_id} could not be looked up in {target.region}"):
        found = list(list_images(target, ImageIds=[ami_id], IncludeDisabled=True))
    return found[0] if found else None


def missing_images(target: Target, ami_ids: Collection[str]) -> set[str]:
    """Return those of the AMIs that are not in the target's region."""
    known = target.hooks.missing(ami_ids)
    if known is not None:
        return known
    named = [{"Name": "image-id", "Values": [*ami_ids]}]
    with aws.explained(f"the AMIs could not be looked up in {target.region}"):
        found = {image.ami_id for image in list_images(target, Filters=named, IncludeDisabled=True)}
    return {*ami_ids} - found


def require_image(target: Target, ami_id: str) -> Image:
    """Return the AMI of that id in the target's region."""
    image = find_image(target, ami_id)
    if image is None:
        raise operation_failed(f"there is no AMI {ami_id} in {target.region}")
    return image


def own_images(target: Target) -> list[Image]:
    """Return the complete AMIs in the target's region that AMI Kiln made or copied, disabled and
    deprecated ones included."""
    ours = [{"Name": "tag-key", "Values": [RUN_ID]}]
    with aws.explained(f"the AMIs could not be listed in {target.region}"):
        return [
            image
            for image in list_images(target, Owners=["self"], Filters=ours, IncludeDisabled=True)
            if image.ours and image.state in ("available", "disabled")
        ]


def list_images(target: Target, **query: Any) -> Iterator[Image]:
    """Yield the AMIs that a DescribeImages query finds; none for an id that is not there.

    EC2's errors are botocore's.
    """
    query = {"IncludeDeprecated": True, **query}
    with aws.tolerated(aws.is_gone):
        for image in aws.paginated(aws.ec2(target), "describe_images", "Images", **query):
            yield as_image(target.region, image)


def as_image(region: str, image: ImageTypeDef) -> Image:
    """Return an image of an answer of DescribeImages."""
    disks = [mapping.get("Ebs", {}) for mapping in image.get("BlockDeviceMappings", [])]
    until, launched = image.get("DeprecationTime"), image.get("LastLaunchedTime")
    return Image(
        region=region,
        ami_id=image["ImageId"],
        name=image.get("Name", ""),
        state=image["State"],
        created=read_time(image["CreationDate"]),
        tags={tag["Key"]: tag["Value"] for tag in image.get("Tags", [])},
        snapshots=tuple(disk["SnapshotId"] for disk in disks if disk.get("SnapshotId")),
        imds_v2=image.get("ImdsSupport") == "v2.0",
        # `disabled after …`: the day of cooldown after somebody has disabled the protection.
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ami-deregistration-protection.html
        protected=image.get("DeregistrationProtection", "").startswith("enabled"),
        deprecated=read_time(until) if until else None,
        launched=read_time(launched) if launched else None,
        reason=image.get("StateReason", {}).get("Message", ""),
    )


def snapshot_keys(target: Target, image: Image) -> dict[str, str | None]:
    """Return the ARN of the KMS key of each of an AMI's snapshots; None for one that is not
    encrypted or not there."""
    if not image.snapshots:
        return {}
    # By a filter: EC2 refuses an id of a snapshot that is gone.
    there = [{"Name": "snapshot-id", "Values": [*image.snapshots]}]
    with aws.explained(f"the snapshots of {image.ami_id} could not be listed in {target.region}"):
        answer = aws.ec2(target).describe_snapshots(Filters=there)  # type: ignore[arg-type]
    keys = {snapshot["SnapshotId"]: snapshot.get("KmsKeyId") for snapshot in answer["Snapshots"]}
    return {snapshot: keys.get(snapshot) for snapshot in image.snapshots}


class ParentNotFoundError(KilnError):
    """EC2 or Systems Manager answers that there is no such parent AMI. Exit status 1."""


def find_parent(recipe: Recipe, target: Target, earlier: ParentAmi | None = None) -> ParentAmi:
    """Return the newest parent AMI of a recipe, or that of an `earlier` build by its id. Raises
    ParentNotFoundError if there is none."""
    if parent := target.hooks.parent(recipe):
        return earlier or parent  # as long as the target is not up; the build asks again
    if earlier:
        if found := _parents(target, ImageIds=[earlier.ami_id]):
            return _as_parent(found[0], found_by="the id in the record")
        raise ParentNotFoundError(
            f"the parent AMI {earlier.ami_id} ({earlier.name or 'of unknown name'}) no longer "
            f"exists in {target.region}",
            hint="vendors remove their old AMIs: copy a parent that must last into an account of "
            "yours, and name that copy in `distros`",
            exit_status=OPERATION_FAILED,
        )
    source = recipe.source_ami
    if source.ssm_parameter:
        found = _parents(target, ImageIds=[_from_parameter(recipe, target)])
    else:
        wanted = {"name": source.name, "architecture": recipe.arch, "state": "available"}
        filters = [{"Name": name, "Values": [text]} for name, text in wanted.items()]
        found = _parents(target, Owners=[source.owner], Filters=filters)
    if not found:
        raise _parent_not_found(recipe, target, "no image matches")
    # What the vendor has withdrawn may be newer than what is current, but a pinned parent is
    # deprecated some day: AL2023's after 90 days.
    current = [image for image in found if not image.is_deprecated]
    newest = max(current or found, key=lambda image: image.created)
    return _as_parent(newest, found_by=str(source))


def parent_finder() -> Callable[[Recipe, Target, ParentAmi | None], ParentAmi]:
    """Return a `find_parent` that asks once for each parent AMI in a region, however many recipes
    share it."""
    parents: dict[object, ParentAmi] = {}

    def find(recipe: Recipe, target: Target, earlier: ParentAmi | None) -> ParentAmi:
        key = (recipe.source_ami, recipe.arch, target.region)
        if key not in parents:
            parents[key] = find_parent(recipe, target, earlier)
        return parents[key]

    return find


def _parents(target: Target, **query: Any) -> list[Image]:
    with aws.explained("the parent AMI could not be looked up"):
        return list(list_images(target, **query))


def _as_parent(image: Image, found_by: str) -> ParentAmi:
    return ParentAmi(image.ami_id, image.name, as_time(image.created), found_by)


def _from_parameter(recipe: Recipe, target: Target) -> str:
    client = aws.ssm(target)
    with aws.explained("the parent AMI could not be looked up"):
        try:
            answer = client.get_parameter(Name=str(recipe.source_ami.ssm_parameter))
        except client.exceptions.ParameterNotFound:
            raise _parent_not_found(recipe, target, "SSM has no such parameter") from None
    return str(answer["Parameter"]["Value"])


def _parent_not_found(recipe: Recipe, target: Target, why: str) -> ParentNotFoundError:
    return ParentNotFoundError(
        f"source AMI not found for {recipe.name} in {target.region}: {recipe.source_ami}: {why}",
        hint=f"see `parents` of {recipe.distro.id} in kiln/facts/knowledge/distros.yaml; `distros` "
        f"in {recipe.row.file} can override it",
        exit_status=OPERATION_FAILED,
    )
