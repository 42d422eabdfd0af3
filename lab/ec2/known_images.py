"""The AMIs that moto shows: those of users, which outlive the lab's process, and their disks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import moto.ec2.models.amis as moto_amis

from lab.amis import images
from lab.guests.instances import LabInstance


def block_device_mappings(ami: Any) -> list[dict[str, Any]]:
    image = LabInstance.machines.made.get(ami.id)
    return [
        {
            "DeviceName": ami.root_device_name,
            "Ebs": {
                "SnapshotId": ami.ebs_snapshot.id,
                "VolumeSize": image.volume_size if image else int(ami.ebs_snapshot.volume.size),
                "DeleteOnTermination": True,
                "VolumeType": "gp3",
                "Encrypted": image.encrypted if image else False,
            },
        },
        *getattr(ami, "other_devices", []),
    ]


def deregistering(original: Callable[..., None]) -> Callable[..., None]:
    def deregister_image(backend: Any, ami_id: str) -> None:
        original(backend, ami_id)
        machines = LabInstance.machines
        if machines.made.pop(ami_id, None):
            images.deregister(machines.lab, ami_id, machines.in_use())

    return deregister_image


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
    ami.other_devices = []
    for listed in image.volumes:
        ebs = dict(listed["Ebs"])
        if ebs.get("SnapshotId") in backend.snapshots:
            ami.other_devices.append({"DeviceName": listed["DeviceName"], "Ebs": ebs})
            continue
        encrypted = bool(ebs.get("Encrypted")) or image.encrypted
        other = backend.create_volume(
            size=ebs["VolumeSize"], zone_name=f"{backend.region_name}a", encrypted=encrypted
        )
        snapshot = backend.create_snapshot(
            other.id, ami.ebs_snapshot.description, from_ami=image.id
        )
        snapshot.add_tags(image.snapshot_tags)
        backend.delete_volume(other.id)
        ebs |= {"SnapshotId": snapshot.id, "Encrypted": encrypted}
        ami.other_devices.append({"DeviceName": listed["DeviceName"], "Ebs": ebs})


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
    """Save the tags and attributes of a backend's AMIs, after a call that may have changed them."""
    for image_id, image in list(LabInstance.machines.made.items()):
        ami = backend.amis.get(image_id)
        if ami is None:
            continue
        tags = {tag["key"]: tag["value"] for tag in ami.get_tags()}
        attributes = {name: getattr(ami, name) for name in _KEPT if hasattr(ami, name)}
        if ami.state in ("available", "disabled"):
            attributes["state"] = ami.state
        attributes = image.attributes | attributes
        current = replace(image, tags=tags, attributes=attributes)
        if current != image:
            LabInstance.machines.made[image_id] = current
            images.save(LabInstance.machines.lab, current)
