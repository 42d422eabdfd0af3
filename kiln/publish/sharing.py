"""Who may launch an AMI and read its snapshots, and what `share` declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.publishing import Share

# Accounts, ARNs of organizations and their units, and "all", by the AMI's or snapshot's id.
Open = Mapping[str, set[str]]


def permissions(target: Target, ami_id: str, snapshots: Sequence[str]) -> Open:
    """Who besides the owner may use an AMI and its snapshots.

    Raises KilnError (exit status 1) if EC2 refuses.
    """
    ec2 = aws.ec2(target)
    with aws.explained(f"the permissions of {ami_id} could not be read in {target.region}"):
        image = ec2.describe_image_attribute(ImageId=ami_id, Attribute="launchPermission")
        permissions: dict[str, Sequence[Mapping[str, Any]]] = {
            ami_id: image.get("LaunchPermissions", [])
        }
        for snapshot in snapshots:
            answer = ec2.describe_snapshot_attribute(
                SnapshotId=snapshot, Attribute="createVolumePermission"
            )
            permissions[snapshot] = answer.get("CreateVolumePermissions", [])
    return {
        resource: {str(who) for permission in each for who in permission.values()}
        for resource, each in permissions.items()
    }


def declared_users(resource: str, share: Share) -> set[str]:
    """Who may launch an AMI, or read a snapshot: EC2 lets only accounts do that."""
    if resource.startswith("snap-"):
        return set(share.accounts)
    return {*share.accounts, *share.organizations, *share.organizational_units}


def undeclared(there: Open, share: Share) -> list[str]:
    """What is open beyond the declaration, in words."""
    return [
        _words(who, resource)
        for resource, each in there.items()
        for who in sorted(each - declared_users(resource, share))
    ]


def missing_permissions(there: Open, share: Share) -> list[str]:
    """What the declaration opens and EC2 does not, in words."""
    return [
        _words(who, resource).replace(" may ", " may not ")
        for resource, each in there.items()
        for who in sorted(declared_users(resource, share) - each)
    ]


def _words(who: str, resource: str) -> str:
    shown = f"account {who}" if who.isdigit() else "everybody" if who == "all" else who
    return f"{shown} may {'read' if resource.startswith('snap-') else 'launch'} {resource}"
