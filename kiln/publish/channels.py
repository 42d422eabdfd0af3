"""Channels: which exist, what they hold and have held.

A channel of a line has two SSM parameters in each region: `/ami-kiln/LINE/CHANNEL/image_id` (data
type `aws:ec2:image`), which consumers resolve, and `…/release`, which describes that image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ValidationError

from kiln.base import vocabulary
from kiln.base.account import Region
from kiln.base.errors import KilnError, first_mistake
from kiln.cloud import aws
from kiln.cloud.target import Target

ROOT = "/ami-kiln"
_IMAGE_PARAMETER = re.compile(rf"{ROOT}/.+/[^/]+/image_id")


AmiId = Annotated[str, vocabulary.AMI_ID]
Action = Literal["publish", "promote", "rollback"]


class Moved(BaseModel, frozen=True):
    """Move of a channel to a release: when (UTC, ISO 8601), by whose ARN."""

    at: Annotated[str, vocabulary.TIME]
    by: str
    action: Action
    why: str = ""


class Installed(BaseModel, frozen=True):
    """Versions on the image; None for what is not on it. `kernel` is the one that boots."""

    driver: str | None = None
    kernel: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    efa: str | None = None
    glibc: str | None = None


class Release(BaseModel, frozen=True):
    """An AMI with its copies, as the parameter beside the AMI's id describes it.

    `images` maps a region to the AMI's id there; `verdict` is the value of its tag `kiln:verified`.
    """

    line: Annotated[str, vocabulary.CHANNEL_LINE]
    channel: Annotated[str, vocabulary.CHANNEL]
    recipe: Annotated[str, vocabulary.RECIPE_NAME]
    ami_name: str
    images: dict[Region, AmiId]
    verdict: str
    run_id: Annotated[str, vocabulary.RUN_ID]
    recipe_digest: str
    git_commit: str
    built: Annotated[str, vocabulary.TIME]
    moved: Moved
    installed: Installed = Installed()

    def into(self, channel: str, moved: Moved) -> Release:
        """Return the same AMI in another channel."""
        return self.model_copy(update={"channel": channel, "moved": moved})

    def to_json(self) -> str:
        """Return the parameter's value: one line."""
        return json.dumps(self.model_dump(), separators=(",", ":"))


def read_release(text: str, called: str) -> Release:
    """Return the release in a parameter's value. Its ids reach EC2 and paths of records, so a value
    that is not one is an error; `called` names the parameter."""
    try:
        return Release.model_validate_json(text)
    except ValidationError as error:
        raise KilnError(f"{called}: not a release: {first_mistake(error)}") from None


@dataclass(frozen=True)
class Held:
    """Image that a channel of a line holds in one region. `version` is that of the image's
    parameter.

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
        """True if a move to `release` has not reached the image's parameter."""
        return self.release is not None and self.release.images.get(self.region) != self.image_id


def image_parameter(line: str, channel: str) -> str:
    """Return the name of the parameter that holds the AMI's id."""
    return f"{ROOT}/{line}/{channel}/image_id"


def release_parameter(line: str, channel: str) -> str:
    """Return the name of the parameter that holds the release."""
    return f"{ROOT}/{line}/{channel}/release"


def statement_parameter(ami_id: str) -> str:
    """Return the name of the parameter that holds the signed statement of an AMI's provenance."""
    return f"{ROOT}-provenance/{ami_id}"


def is_image_parameter(name: str) -> bool:
    """Return True if a parameter is that of a channel's AMI."""
    return _IMAGE_PARAMETER.fullmatch(name) is not None


def held(target: Target, line: str, channel: str) -> Held | None:
    """Return what a channel holds in the target's region; None if nothing was ever published."""
    names = [image_parameter(line, channel), release_parameter(line, channel)]
    with aws.explained(f"the channel {channel} of {line} could not be read in {target.region}"):
        found = aws.ssm(target).get_parameters(Names=names)["Parameters"]
    return next(_held(target.region, found), None)


def all_held(target: Target, line: str | None = None) -> list[Held]:
    """Return what every channel, or each of a line, holds in the target's region, sorted."""
    with aws.explained(f"the channels could not be read in {target.region}"):
        query = {"Path": f"{ROOT}/{line}" if line else ROOT, "Recursive": True}
        ssm = aws.ssm(target)
        found = list(aws.paginated(ssm, "get_parameters_by_path", "Parameters", **query))
    return list(_held(target.region, found))


def _held(region: str, found: Sequence[Any]) -> Iterator[Held]:
    parameters = {parameter["Name"]: parameter for parameter in found}
    for name in sorted(filter(is_image_parameter, parameters)):
        image = parameters[name]
        line, channel = name.removeprefix(f"{ROOT}/").removesuffix("/image_id").rsplit("/", 1)
        described = parameters.get(release_parameter(line, channel))
        yield Held(
            line=line,
            channel=channel,
            region=region,
            image_id=image["Value"],
            version=image["Version"],
            since=image["LastModifiedDate"],
            release=read_release(described["Value"], described["Name"]) if described else None,
        )


def past(target: Target, line: str, channel: str) -> Iterator[Release]:
    """Yield the releases that a channel has held in the target's region, its present one first.

    SSM keeps the last 100: https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-versions.html
    A damaged one that has been replaced is left out: nobody can change it.
    """
    name, ssm = release_parameter(line, channel), aws.ssm(target)
    with aws.explained(f"the history of {channel} of {line} could not be read in {target.region}"):
        try:
            entries = list(aws.paginated(ssm, "get_parameter_history", "Parameters", Name=name))
        except ssm.exceptions.ParameterNotFound:
            return
    entries.sort(key=lambda version: version["Version"], reverse=True)
    for entry in entries:
        try:
            release = read_release(entry["Value"], name)
        except KilnError:
            if entry is entries[0]:
                raise
            continue
        yield release


def arrival(past: Sequence[Release], image_id: str, region: str) -> int:
    """Return the place in `past` of the move that brought an image into the channel.

    A rollback brings nothing: a second one continues from where the first ended.
    """
    for index, release in enumerate(past):
        if release.images.get(region) == image_id and release.moved.action != "rollback":
            return index
    return len(past)


def put_parameter(
    target: Target,
    tags: Mapping[str, str],
    name: str,
    value: str,
    *,
    new: bool = False,
    **more: str,
) -> int:
    """Write a parameter; return its version. SSM's errors are botocore's.

    SSM takes tags for a new parameter alone:
    https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html
    """
    ssm: Any = aws.ssm(target)
    # What has more than four kilobytes costs something, and nothing else.
    request = {
        "Name": name,
        "Value": value,
        "Type": "String",
        "Tier": "Intelligent-Tiering",
        **more,
    }
    if tags or new:
        try:
            wanted = [{"Key": key, "Value": text} for key, text in tags.items()]
            return int(ssm.put_parameter(**request, Tags=wanted, Overwrite=False)["Version"])
        except ssm.exceptions.ParameterAlreadyExists:
            if new:
                raise
    return int(ssm.put_parameter(**request, Overwrite=True)["Version"])
