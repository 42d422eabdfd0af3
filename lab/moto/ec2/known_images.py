"""The AMIs that moto shows: those of users, which outlive the lab's process, and their disks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import moto.ec2.models.amis as moto_amis

from lab.machine import images
from lab.moto.instances import LabInstance


def block_device_mappings(ami: Any) -> list[dict[str, Any]]:
    image = LabInstance.machines.made.get(ami.id)
    ebs = {
        "SnapshotId": ami.ebs_snapshot.id,
        "VolumeSize": image.volume_size if image else int(ami.ebs_snapshot.volume.size),
        "DeleteOnTermination": True,
        "VolumeType": "gp3",
        "Encrypted": image.encrypted if image else False,
    }
    return [{"DeviceName": ami.root_device_name, "Ebs": ebs}]


def forget(image_id: str) -> None:
    """Delete the entry of a deregistered AMI, and its disk unless something uses it."""
    machines = LabInstance.machines
    if machines.made.pop(image_id, None):
        images.deregister(machines.lab, image_id, machines.in_use())


def restore(backend: Any) -> None:
    """Register the AMIs of earlier lab processes in a new moto backend of their region."""
    for image in list(LabInstance.machines.made.values()):
        if image.region != backend.region_name or image.id in backend.amis:
            continue
        registered(backend, image)


def registered(backend: Any, image: images.Image) -> Any:
    """Register an AMI that the lab knows with moto; returns moto's."""
    ami = moto_amis.Ami(
        backend,
        image.id,
        name=image.name,
        description=image.description,
        architecture=image.architecture,
        virtualization_type="hvm",
        root_device_type="ebs",
        hypervisor="xen",
        image_location=f"{backend.account_id}/{image.name}",
        creation_date=moto_amis.parse_timestamp(image.created),
        root_device_name=image.root_device_name,
        boot_mode=image.attributes.get("boot_mode"),
        tags=image.tags,
    )
    ami.instance_id = image.instance_id or None
    describe_disk(backend, ami, image)
    for name, value in image.attributes.items():
        setattr(ami, name, value)
    backend.amis[image.id] = ami
    return ami


def describe_disk(backend: Any, ami: Any, image: images.Image) -> None:
    """Give the snapshot of an AMI its size, key and tags: moto's has 15 GiB and no key."""
    volume = backend.create_volume(
        size=image.volume_size,
        zone_name=f"{backend.region_name}a",
        encrypted=image.encrypted,
        kms_key_id=image.kms_key_id,
    )
    backend.delete_volume(volume.id)
    ami.ebs_snapshot.volume = volume
    ami.ebs_snapshot.encrypted = volume.encrypted
    ami.ebs_snapshot.kms_key_id = volume.kms_key_id
    ami.ebs_snapshot.add_tags(image.snapshot_tags)
    for known in image.snapshots.values():
        snapshot = backend.snapshots.pop(ami.ebs_snapshot.id)
        snapshot.id = known["id"]
        backend.snapshots[snapshot.id] = snapshot
        snapshot.description = known["description"]
        snapshot.create_volume_permission_userids = set(known["users"])
        snapshot.create_volume_permission_groups = set(known["groups"])
        snapshot.add_tags(known["tags"])


def _snapshots(backend: Any, ami: Any) -> dict[str, dict[str, Any]]:
    """Return the lasting fields of an AMI's snapshots, by device."""
    snapshot = backend.snapshots.get(ami.ebs_snapshot.id)
    if not snapshot:
        return {}
    known = {
        "id": snapshot.id,
        "description": snapshot.description,
        "tags": {tag["key"]: tag["value"] for tag in snapshot.get_tags()},
        "users": sorted(snapshot.create_volume_permission_userids),
        "groups": sorted(snapshot.create_volume_permission_groups),
    }
    return {ami.root_device_name: known}


# What calls change of an AMI, and outlives the lab's process.
_KEPT = (
    "deprecation_time",
    "deregistration_protection",
    "description",
    "imds_support",
    "last_launched_time",
    "launch_permissions",
)


def remember(backend: Any) -> None:
    """Save what calls may have changed of a backend's AMIs and their snapshots."""
    for image_id, image in list(LabInstance.machines.made.items()):
        ami = backend.amis.get(image_id)
        if ami is None:
            continue
        tags = {tag["key"]: tag["value"] for tag in ami.get_tags()}
        attributes = {name: getattr(ami, name) for name in _KEPT if hasattr(ami, name)}
        if ami.state in ("available", "disabled"):
            attributes["state"] = ami.state
        attributes = image.attributes | attributes
        snapshots = _snapshots(backend, ami)
        current = replace(image, tags=tags, attributes=attributes, snapshots=snapshots)
        if current != image:
            LabInstance.machines.made[image_id] = current
            images.save(LabInstance.machines.lab, current)
