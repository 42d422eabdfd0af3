"""Snapshots: who has them, who may use them.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSnapshots.html
"""

from __future__ import annotations

from typing import Any

from lab.moto import volume_keys
from lab.moto.ec2.calls import Request, call, error, missing


def find(backend: Any, snapshot_id: str | None) -> Any:
    """A snapshot. Raises EC2's error when there is none."""
    if not snapshot_id:
        raise missing("SnapshotId")
    if snapshot_id not in backend.snapshots:
        raise error("InvalidSnapshot.NotFound", f"The snapshot '{snapshot_id}' does not exist.")
    return backend.snapshots[snapshot_id]


@call("DescribeSnapshots")
def _describe(request: Request) -> dict[str, Any]:
    backend, parameters = request.backend, request.parameters
    wanted = parameters.get("SnapshotIds") or []
    chosen = [find(backend, snapshot_id) for snapshot_id in wanted] or list(
        backend.snapshots.values()
    )
    owners = parameters.get("OwnerIds") or []
    if owners:
        mine = [backend.account_id if owner == "self" else owner for owner in owners]
        chosen = [snapshot for snapshot in chosen if snapshot.owner_id in mine]
    return {"Snapshots": chosen}


@call("DeleteSnapshot")
def _delete(request: Request) -> None:
    backend = request.backend
    snapshot = find(backend, request.parameters.get("SnapshotId"))
    for ami in list(backend.amis.values()):
        used = [device["Ebs"].get("SnapshotId") for device in ami.block_device_mappings]
        if snapshot.id in used:
            raise error(
                "InvalidSnapshot.InUse",
                f"The snapshot {snapshot.id} is currently in use by {ami.id}",
            )
    _check_owner(backend, snapshot)
    backend.snapshots.pop(snapshot.id)


def _check_owner(backend: Any, snapshot: Any) -> None:
    if snapshot.owner_id != backend.account_id:
        raise error("UnauthorizedOperation", f"The snapshot {snapshot.id} is another account's")


@call("ModifySnapshotAttribute")
def _modify(request: Request) -> None:
    parameters = request.parameters
    snapshot = find(request.backend, parameters.get("SnapshotId"))
    _check_owner(request.backend, snapshot)
    operation = parameters.get("OperationType")
    changes = parameters.get("CreateVolumePermission") or {}
    add, remove = list(changes.get("Add", [])), list(changes.get("Remove", []))
    short = [{"Group": group} for group in parameters.get("GroupNames") or []]
    short += [{"UserId": user} for user in parameters.get("UserIds") or []]
    if operation in ("add", "remove"):
        (add if operation == "add" else remove).extend(short)
    elif short and not changes:
        raise missing("OperationType")
    request.backend.validate_permission_targets([*add, *remove])
    everybody = any(permission.get("Group") == "all" for permission in add)
    if everybody and snapshot.encrypted:
        raise error("InvalidParameterValue", "Encrypted snapshots cannot be shared publicly")
    if add and volume_keys.is_awss_own(request.backend, snapshot.kms_key_id):
        raise error(
            "OperationNotPermitted", "Encrypted snapshots with EBS default key cannot be shared"
        )
    for permission in add:
        _of(snapshot, permission).add(next(iter(permission.values())))
    for permission in remove:
        _of(snapshot, permission).discard(next(iter(permission.values())))


def _of(snapshot: Any, permission: dict[str, str]) -> set[str]:
    groups: set[str] = snapshot.create_volume_permission_groups
    users: set[str] = snapshot.create_volume_permission_userids
    return groups if "Group" in permission else users


@call("GetEbsDefaultKmsKeyId")
def _default_key(request: Request) -> dict[str, Any]:
    """AWS's own: the lab lets nobody change it."""
    return {"KmsKeyId": "alias/aws/ebs"}


@call("DescribeSnapshotAttribute")
def _attribute(request: Request) -> dict[str, Any]:
    snapshot = find(request.backend, request.parameters.get("SnapshotId"))
    public = [{"Group": group} for group in sorted(snapshot.create_volume_permission_groups)]
    users = [{"UserId": user} for user in sorted(snapshot.create_volume_permission_userids)]
    return {"SnapshotId": snapshot.id, "CreateVolumePermissions": public + users}
