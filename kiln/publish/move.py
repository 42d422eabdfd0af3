"""Moves a channel to a release in all its regions, and the launch templates that follow it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.times import now
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.model import LaunchTemplate
from kiln.publish import channels
from kiln.publish.channels import Action, Held, Moved, Release
from kiln.publish.lines import Line
from kiln.publish.regions import Say, in_regions

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# How often a channel is read until it holds what was written. SSM answers before it has looked the
# AMI up, and if it does not find it, it leaves the parameter as it was.
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html (DataType)
_READS = 30


@dataclass(frozen=True)
class Move:
    """What a move did in a region. `changed` is False where the channel held the image already."""

    line: str
    channel: str
    region: str
    ami_id: str
    changed: bool
    before: str | None
    templates: tuple[str, ...] = ()


def held_in(target: Target, regions: Sequence[str], line: str, channel: str) -> dict[str, Held]:
    """Return what a channel holds in each region in which it holds something."""
    held = in_regions(
        regions, lambda region: channels.held(target.in_region(region), line, channel)
    )
    return {region: item for region, item in held.items() if item is not None}


def warn_skipped_regions(
    held: Held | None, ami_name: str, regions: Collection[str], say: Say
) -> None:
    """Say which regions keep their present AMI, because the new release is not published there.

    `held` is what the channel holds in the target's region; others may not answer any more.
    """
    if held is None or held.release is None:
        return
    for region, ami_id in held.release.images.items():
        if region not in regions:
            keeps = f"{held.channel} of {held.line} keeps {ami_id}"
            say(f"{region}: {keeps}: {ami_name} is not published there")


def moved_now(target: Target, action: Action, why: str) -> Moved:
    """Return a move at this moment, by whom the credentials belong to."""
    return Moved(at=now(), by=aws.identity(target), action=action, why=why)


def move_everywhere(
    target: Target, release: Release, before: Mapping[str, Held], line: Line, say: Say
) -> list[Move]:
    """Let the release's channel hold it in each of its regions, one after the other.

    `before` is what the channel held when the move was decided. An error says which regions have
    moved; a second run continues.
    """
    done: list[Move] = []
    moved: list[str] = []
    regions = list(dict.fromkeys([target.region, *release.images]))
    for region in regions:
        there, held, ami_id = target.in_region(region), before.get(region), release.images[region]
        try:
            changed = move_one(there, release, held, line.tags)
            moved.append(region)
            followed = tuple(_follow(there, release, line.settings.launch_templates))
        except KilnError as error:
            done_so_far = f"moved to {release.ami_name}: {', '.join(moved) or 'none'}"
            left = ", ".join(regions[len(moved) :]) or "none"
            raise operation_failed(
                f"{error.message}\n  {done_so_far}; not: {left}",
                hint="; ".join(filter(None, [error.hint, "run it again to go on"])),
            ) from None
        was = held.image_id if held else None
        done.append(Move(line.name, release.channel, region, ami_id, changed, was, followed))
        if changed:
            since = f", before {was}" if was else ""
            say(f"{release.channel} of {line.name} in {region}: {ami_id}{since}")
    return done


def move_one(
    target: Target, release: Release, before: Held | None, tags: Mapping[str, str]
) -> bool:
    """Let the release's channel hold its image of the target's region; False if it did already.

    `before` is what the channel held when the move was decided. If somebody else has moved it
    since, nothing is overwritten.
    """
    line, channel, region = release.line, release.channel, target.region
    image_id = release.images[region]
    now = channels.held(target, line, channel)
    if now and now.image_id == image_id and now.release and now.release.images == release.images:
        return False
    version = now.version if now else 0
    if version != (before.version if before else 0):
        raise _moved_meanwhile(target, release, now)
    with aws.explained(f"{channel} of {line} could not be moved in {region}"):
        # First, so that an id never stands without its description.
        name = channels.release_parameter(line, channel)
        channels.put_parameter(target, tags, name, release.as_json())
        if now and now.image_id == image_id:
            return True
        name, kind = channels.image_parameter(line, channel), {"DataType": "aws:ec2:image"}
        first = now is None
        try:
            written = channels.put_parameter(target, tags, name, image_id, new=first, **kind)
        except aws.ssm(target).exceptions.ParameterAlreadyExists:
            raise _moved_meanwhile(target, release, channels.held(target, line, channel)) from None
    if written != version + 1:
        raise operation_failed(
            f"two moved {channel} of {line} in {region} at once: it holds {image_id} now"
        )
    _require_held(target, release, written)
    return True


def _require_held(target: Target, release: Release, version: int) -> None:
    """Wait until a channel holds the image of its region, written as that version."""
    line, channel, image_id = release.line, release.channel, release.images[target.region]
    for _ in range(_READS):
        now = channels.held(target, line, channel)
        if now and now.image_id == image_id:
            return
        if now and now.version >= version:
            raise _moved_meanwhile(target, release, now)
        time.sleep(target.poll_seconds)
    raise operation_failed(
        f"SSM has taken {image_id} for {channel} of {line} in {target.region}, and does not show "
        f"it: the channel holds {now.image_id if now else 'nothing'}",
        hint="ec2:DescribeImages must show it to these credentials",
    )


def _moved_meanwhile(target: Target, release: Release, now: Held | None) -> Exception:
    line, channel = release.line, release.channel
    holds = f"it holds {now.image_id}" if now else "it is gone"
    return operation_failed(
        f"{channel} of {line} was changed by somebody else in {target.region} meanwhile: {holds}",
        hint=f"./invoke history --line {line} --channel {channel} says who; then run it again",
    )


def _follow(target: Target, release: Release, templates: Sequence[LaunchTemplate]) -> Iterator[str]:
    """Let the templates of the release's channel launch its image of the target's region by
    default; yield the names and versions of those that were changed."""
    for template in templates:
        here = not template.regions or target.region in template.regions
        if template.channel == release.channel and here:
            what = f"the launch template {template.name} could not follow in {target.region}"
            with aws.explained(what):
                version = _default_version(target, release, template)
            if version:
                yield f"{template.name} version {version}"


def _default_version(target: Target, release: Release, template: LaunchTemplate) -> int:
    """Make the version with the release's image the template's default; 0 if it is that already.

    A version with that image is used again, so that a rollback restores the former default.
    """
    ec2 = _ec2_in_role(target, template.role_arn) if template.role_arn else aws.ec2(target)
    image_id, name = release.images[target.region], template.name
    pages = ec2.get_paginator("describe_launch_template_versions").paginate(LaunchTemplateName=name)
    versions: list[Any] = [each for page in pages for each in page["LaunchTemplateVersions"]]
    default = next(version for version in versions if version["DefaultVersion"])
    # With any other version, settings that the owner has changed since would be lost.
    wanted = {**default["LaunchTemplateData"], "ImageId": image_id}
    if default["LaunchTemplateData"] == wanted:
        return 0
    same = [version for version in versions if version["LaunchTemplateData"] == wanted]
    if same:
        number = int(same[-1]["VersionNumber"])
    else:
        made = ec2.create_launch_template_version(
            LaunchTemplateName=name,
            SourceVersion=str(default["VersionNumber"]),
            VersionDescription=f"{release.line} {release.channel} {image_id} {release.run_id}"[
                :255
            ],
            LaunchTemplateData={"ImageId": image_id},
        )
        number = int(made["LaunchTemplateVersion"]["VersionNumber"])
    ec2.modify_launch_template(LaunchTemplateName=name, DefaultVersion=str(number))
    return number


def _ec2_in_role(target: Target, role_arn: str) -> EC2Client:
    """Return an EC2 client with the credentials of a role, for 15 minutes."""
    given = aws.sts(target).assume_role(
        RoleArn=role_arn, RoleSessionName="ami-kiln", DurationSeconds=900
    )["Credentials"]
    client: EC2Client = aws.session_client(
        "ec2",
        target,
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["SessionToken"],
    )
    return client
