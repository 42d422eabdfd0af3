"""When EC2 deprecates a published AMI, and an AMI on its way out that a channel holds again.

EC2 leaves a deprecated AMI out of what other accounts list, though it launches.
Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ami-deprecate.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from kiln.base.tags import RETIRING
from kiln.base.times import utc_now
from kiln.cloud import aws
from kiln.cloud.images import Image, find_image
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.publish.regions import in_regions


def protect_and_date(target: Target, image: Image, settings: Publish) -> None:
    """Protect an AMI from deregistration and give it the date that the settings say, if it has none
    or is deprecated; what `retire` has done is undone. EC2's errors are botocore's."""
    ec2 = aws.ec2(target)
    out = is_on_its_way_out(image)
    if not image.protected:
        ec2.enable_image_deregistration_protection(ImageId=image.ami_id)
    if settings.deprecate_after and (out or not image.deprecated):
        at = utc_now() + timedelta(days=settings.deprecate_after)
        ec2.enable_image_deprecation(ImageId=image.ami_id, DeprecateAt=at)
    elif out:
        ec2.disable_image_deprecation(ImageId=image.ami_id)
    if image.retiring:  # last, so that an interrupted run is continued
        ec2.delete_tags(Resources=[image.ami_id], Tags=[{"Key": RETIRING}])


def is_on_its_way_out(image: Image) -> bool:
    """Whether an AMI is deprecated, by `retire` or because its date has passed."""
    passed = image.deprecated is not None and image.deprecated <= utc_now()
    return image.retiring or passed


def bring_back(
    target: Target, images: Mapping[str, str], settings: Publish, say: Callable[[str], None]
) -> None:
    """Lift the deprecation of these AMIs, by region, before a channel names them.

    Raises KilnError (exit status 1) that names each region in which EC2 refuses."""

    def there(region: str) -> bool:
        place = target.in_region(region)
        image = find_image(place, images[region])
        if image is None or not is_on_its_way_out(image):
            return False
        with aws.explained(f"{image.ami_id} stays deprecated in {region}"):
            protect_and_date(place, image, settings)
        return True

    for region, was in in_regions(list(images), there).items():
        if was:
            say(f"{region}: {images[region]} is deprecated no more")
