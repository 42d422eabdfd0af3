"""AMIs as EC2 describes them, as far as publishing asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish.own_images import is_protected, own_image
from kiln.publish.regions import in_regions


@dataclass(frozen=True)
class Image:
    """An AMI as EC2 describes it, as far as publishing asks. `keys` are the KMS keys' ARNs of its
    snapshots, None for one that is not encrypted."""

    region: str
    ami_id: str
    state: str
    reason: str
    tags: dict[str, str]
    snapshots: tuple[str, ...]
    keys: tuple[str | None, ...]
    imds_v2: bool
    deprecated_at: str | None
    protected: bool


def describe_image(target: Target, ami_id: str) -> Image | None:
    """The AMI in the target's region; None if it is not there. Raises KilnError (exit status 1)."""
    return next(images_there(target, ImageIds=[ami_id]), None)


def images_there(target: Target, **query: Any) -> Iterator[Image]:
    """The AMIs that a DescribeImages finds. Raises KilnError (exit status 1) if EC2 refuses."""
    from botocore.exceptions import ClientError

    ec2 = aws.ec2(target)
    with aws.explained(f"images could not be looked up in {target.region}"):
        try:
            images = ec2.describe_images(**query)["Images"]
        except ClientError as error:
            if aws.is_gone(error):
                return
            raise
        for image in images:
            disks = [
                mapping["Ebs"]
                for mapping in image.get("BlockDeviceMappings", [])
                if mapping.get("Ebs", {}).get("SnapshotId")
            ]
            ids = [disk["SnapshotId"] for disk in disks]
            keys: dict[str, str | None] = {}
            if ids and image["State"] == "available":
                try:
                    snapshots = ec2.describe_snapshots(SnapshotIds=ids)["Snapshots"]
                except ClientError as error:
                    # EC2 deletes no snapshot of an AMI: this one was deregistered meanwhile, or
                    # EC2's lists of images and snapshots differ for a moment.
                    missing = error.response["Error"].get("Code") == "InvalidSnapshot.NotFound"
                    if missing and own_image(target, image["ImageId"]) is None:
                        continue
                    raise
                for snapshot in snapshots:
                    keys[snapshot["SnapshotId"]] = snapshot.get("KmsKeyId")
            yield Image(
                region=target.region,
                ami_id=str(image["ImageId"]),
                state=str(image["State"]),
                reason=str(image.get("StateReason", {}).get("Message", "")),
                tags={tag["Key"]: tag["Value"] for tag in image.get("Tags", [])},
                snapshots=tuple(ids),
                keys=tuple(keys.get(snapshot) for snapshot in ids),
                imds_v2=image.get("ImdsSupport") == "v2.0",
                deprecated_at=image.get("DeprecationTime"),
                protected=is_protected(image),
            )


def not_available(target: Target, images: Mapping[str, str]) -> list[str]:
    """Those of a release's images, by region, that cannot be launched, in words.

    Raises KilnError (exit status 1) if a region does not answer.
    """

    def state(region: str) -> str:
        image = describe_image(target.in_region(region), images[region])
        return image.state if image else "not there any more"

    states = in_regions(list(images), state)
    return [
        f"{images[region]} in {region} is {state}"
        for region, state in states.items()
        if state != "available"
    ]
