"""Launch templates whose default version follows a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.publishing import LaunchTemplate
from kiln.publish.release import Release

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def follow(
    target: Target, release: Release, templates: Sequence[LaunchTemplate]
) -> tuple[str, ...]:
    """Let the templates of the release's channel launch its image of the target's region by
    default; the names and versions of those that were changed.

    A version with that image is used again, so that a rollback restores the former default.
    Raises KilnError (exit status 1) if EC2 refuses, or a template does not exist.
    """
    changed = []
    for template in templates:
        here = not template.regions or target.region in template.regions
        if template.channel == release.channel and here:
            version = _follow(target, release, template)
            if version is not None:
                changed.append(f"{template.name} version {version}")
    return tuple(changed)


def _follow(target: Target, release: Release, template: LaunchTemplate) -> int | None:
    role = template.role_arn
    ec2 = _ec2_in_role(target, role) if role else aws.ec2(target)
    image_id = release.images[target.region]
    with aws.explained(f"the launch template {template.name} could not follow in {target.region}"):
        versions = _versions(ec2, template.name)
        default = next(version for version in versions if version["DefaultVersion"])
        if _image(default) == image_id:
            return None
        same = [
            version
            for version in versions
            if _image(version) == image_id and _like(version, default)
        ]
        if same:
            number = int(same[-1]["VersionNumber"])
        else:
            number = _made(ec2, template, release, default, image_id)
        ec2.modify_launch_template(LaunchTemplateName=template.name, DefaultVersion=str(number))
    return number


def _ec2_in_role(target: Target, role_arn: str) -> EC2Client:
    """An EC2 client with the credentials of a role, for 15 minutes."""
    with aws.explained(f"the role {role_arn} could not be assumed"):
        credentials = aws.sts(target).assume_role(
            RoleArn=role_arn, RoleSessionName="ami-kiln", DurationSeconds=900
        )["Credentials"]
    client: EC2Client = aws.session_client(
        "ec2",
        target,
        aws_access_key_id=credentials["AccessKeyId"],
        aws_secret_access_key=credentials["SecretAccessKey"],
        aws_session_token=credentials["SessionToken"],
    )
    return client


def _versions(ec2: EC2Client, name: str) -> list[Any]:
    pages = ec2.get_paginator("describe_launch_template_versions")
    return [
        version
        for page in pages.paginate(LaunchTemplateName=name)
        for version in page["LaunchTemplateVersions"]
    ]


def _image(version: Any) -> str:
    return str(version["LaunchTemplateData"].get("ImageId", ""))


def _like(version: Any, default: Any) -> bool:
    """Whether a version differs from the default one in its image only: settings that its owner
    changed since must not be lost."""
    fields = [{**each["LaunchTemplateData"], "ImageId": ""} for each in (version, default)]
    return bool(fields[0] == fields[1])


def _made(
    ec2: EC2Client, template: LaunchTemplate, release: Release, default: Any, image_id: str
) -> int:
    """A new version that differs from the default one in its image; its number."""
    answer = ec2.create_launch_template_version(
        LaunchTemplateName=template.name,
        SourceVersion=str(default["VersionNumber"]),
        VersionDescription=f"{release.line} {release.channel} {image_id} {release.run_id}"[:255],
        LaunchTemplateData={"ImageId": image_id},
    )
    return int(answer["LaunchTemplateVersion"]["VersionNumber"])
