"""Channels are SSM parameters: which exist, and what they hold.

A channel of a line has two in each region: `/ami-kiln/LINE/CHANNEL/image_id` (data type
`aws:ec2:image`), which consumers resolve, and `…/release`, which says what that image is.
The release is written first, so that an id never stands without its description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kiln.base.errors import KilnError
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish.release import Release, read_release

ROOT = "/ami-kiln"
_IMAGE_PARAMETER = re.compile(rf"{ROOT}/.+/[^/]+/image_id")


def image_parameter(line: str, channel: str) -> str:
    """The parameter that holds the AMI's id."""
    return f"{ROOT}/{line}/{channel}/image_id"


def release_parameter(line: str, channel: str) -> str:
    """The parameter that holds the release."""
    return f"{ROOT}/{line}/{channel}/release"


def is_image_parameter(name: str) -> bool:
    """Whether a parameter is that of a channel's AMI."""
    return _IMAGE_PARAMETER.fullmatch(name) is not None


@dataclass(frozen=True)
class Held:
    """What a channel of a line holds in one region. `version` is that of the image's parameter.

    `release` is None if the image's parameter was not written by AMI Kiln; it can be one move
    ahead of `image_id` if a move was killed (`moving`).
    """

    line: str
    channel: str
    region: str
    image_id: str
    version: int
    since: datetime
    release: Release | None

    @property
    def moving(self) -> bool:
        """Whether a move to `release` has not reached the image's parameter."""
        return self.release is not None and self.release.images.get(self.region) != self.image_id


def held(target: Target, line: str, channel: str) -> Held | None:
    """What a channel holds in the target's region; None if nothing was ever published there.

    Raises KilnError (exit status 1) if SSM refuses, 2 for a damaged release.
    """
    names = [image_parameter(line, channel), release_parameter(line, channel)]
    with aws.explained(f"the channel {channel} of {line} could not be read in {target.region}"):
        parameters = aws.ssm(target).get_parameters(Names=names)["Parameters"]
    return _held(
        target.region, {parameter["Name"]: parameter for parameter in parameters}, names[0]
    )


def all_held(target: Target) -> list[Held]:
    """What every channel holds in the target's region, by line and channel.

    SSM gives ten parameters at once, so that requests grow with the lines of each region.
    """
    return _below(target, ROOT)


def held_by_line(target: Target, line: str) -> list[Held]:
    """What the channels of a line hold in the target's region."""
    return _below(target, f"{ROOT}/{line}")


def _below(target: Target, path: str) -> list[Held]:
    parameters: dict[str, Any] = {}
    with aws.explained(f"the channels could not be read in {target.region}"):
        pages = aws.ssm(target).get_paginator("get_parameters_by_path")
        for page in pages.paginate(Path=path, Recursive=True):
            parameters |= {parameter["Name"]: parameter for parameter in page["Parameters"]}
    # Other parameters below this path are not channels.
    holdings = (
        _held(target.region, parameters, name)
        for name in sorted(parameters)
        if is_image_parameter(name)
    )
    return [holding for holding in holdings if holding is not None]


def _held(region: str, parameters: dict[str, Any], name: str) -> Held | None:
    image = parameters.get(name)
    if image is None:
        return None
    line, channel = name.removeprefix(f"{ROOT}/").removesuffix("/image_id").rsplit("/", 1)
    described = parameters.get(release_parameter(line, channel))
    return Held(
        line=line,
        channel=channel,
        region=region,
        image_id=str(image["Value"]),
        version=int(image["Version"]),
        since=image["LastModifiedDate"],
        release=read_release(described["Value"], described["Name"]) if described else None,
    )


def past(target: Target, line: str, channel: str) -> Iterator[Release]:
    """The releases that a channel has held in the target's region, newest first, its present one
    included. SSM keeps the last 100. One that was damaged and has been replaced is left out: nobody
    can change it.

    Raises KilnError (exit status 1) if SSM refuses, 2 for a damaged present one. Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-versions.html
    """
    from botocore.exceptions import ClientError

    name = release_parameter(line, channel)
    entries: list[Any] = []
    with aws.explained(f"the history of {channel} of {line} could not be read in {target.region}"):
        try:
            pages = aws.ssm(target).get_paginator("get_parameter_history")
            for page in pages.paginate(Name=name):
                entries += page["Parameters"]
        except ClientError as error:
            if error.response["Error"].get("Code") != "ParameterNotFound":
                raise
    entries.sort(key=lambda version: int(version["Version"]), reverse=True)
    for entry in entries:
        try:
            release = read_release(entry["Value"], name)
        except KilnError:
            if entry is entries[0]:
                raise
            continue
        yield release


def arrival(past: Sequence[Release], image_id: str, region: str) -> int:
    """The place in `past` (newest first) of the move that brought an image into the channel.

    A rollback brings nothing: a second one continues from where the first ended.
    """
    for index, release in enumerate(past):
        if release.images.get(region) == image_id and release.moved.action != "rollback":
            return index
    return len(past)
