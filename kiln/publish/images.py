"""Which of a release's images can be launched."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.cloud.images import find_image
from kiln.cloud.target import Target
from kiln.publish.regions import in_regions


def not_available(target: Target, images: Mapping[str, str]) -> list[str]:
    """Those of a release's images, by region, that cannot be launched, in words.

    Raises KilnError (exit status 1) if a region does not answer.
    """

    def state(region: str) -> str:
        image = find_image(target.in_region(region), images[region])
        return image.state if image else "not there any more"

    states = in_regions(list(images), state)
    return [
        f"{images[region]} in {region} is {state}"
        for region, state in states.items()
        if state != "available"
    ]
