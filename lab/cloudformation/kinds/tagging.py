"""The tags of resources that are there already: an update of the stack's own tags changes them.

https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-properties-resource-tags.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lab.cloudformation.kinds.kind import Made, Place

Tags = Mapping[str, str]
# Place, resource, tags that it gets, keys that it loses.
_Change = Callable[[Place, Made, Tags, list[str]], None]


def change(kind: str, place: Place, made: Made, old: Tags, new: Tags) -> None:
    """Give a resource other tags."""
    added = {key: value for key, value in new.items() if old.get(key) != value}
    CHANGES[kind](place, made, added, [key for key in old if key not in new])


def _pairs(tags: Tags, key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    return [{key: name, value: text} for name, text in tags.items()]


def _of_ec2(place: Place, made: Made, added: Tags, removed: list[str]) -> None:
    ec2 = place.client("ec2")
    if added:
        ec2.create_tags(Resources=[made.id], Tags=_pairs(added))
    if removed:
        ec2.delete_tags(Resources=[made.id], Tags=[{"Key": key} for key in removed])


def _by(service: str, what: str, name: str, attribute: str = "") -> _Change:
    """By TagRole and UntagRole, for example, which name the resource by `name`."""

    def apply(place: Place, made: Made, added: Tags, removed: list[str]) -> None:
        client: Any = place.client(service)
        named = {name: made.attributes[attribute] if attribute else made.id}
        pairs = _pairs(added, "TagKey", "TagValue") if service == "kms" else _pairs(added)
        if added:
            getattr(client, f"tag_{what}")(**named, Tags=pairs)
        if removed:
            getattr(client, f"untag_{what}")(**named, TagKeys=removed)

    return apply


CHANGES: Mapping[str, _Change] = {
    **{
        f"AWS::EC2::{name}": _of_ec2
        for name in (
            *("VPC", "InternetGateway", "Subnet", "RouteTable", "SecurityGroup", "Instance"),
            "LaunchTemplate",
        )
    },
    "AWS::IAM::Role": _by("iam", "role", "RoleName"),
    "AWS::IAM::ManagedPolicy": _by("iam", "policy", "PolicyArn"),
    "AWS::KMS::Key": _by("kms", "resource", "KeyId"),
    "AWS::SNS::Topic": _by("sns", "resource", "ResourceArn"),
    "AWS::CloudWatch::Alarm": _by("cloudwatch", "resource", "ResourceARN", "Arn"),
}
