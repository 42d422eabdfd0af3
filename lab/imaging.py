"""Disks behind moto's AMIs: CreateImage freezes a disk, DeregisterImage releases it."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import moto.ec2.models.amis as moto_amis
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError

from lab import disks, images
from lab.instances import PENDING, STOP_TIMEOUT, STOPPING, LabInstance, incorrect_state

log = logging.getLogger("lab.imaging")

# CreateImage's NoReboot, which moto does not pass on; lab.api sets it for each request.
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
no_reboot: ContextVar[bool] = ContextVar("no_reboot", default=False)


def create_image(
    backend: Any, instance_id: str, name: str, description: str, tag_specifications: list[Any]
) -> Any:
    """CreateImage: freeze the instance's disk and register the AMI with its size and tags."""
    for ami in backend.amis.values():
        if ami.name == name and ami.owner_id == backend.account_id:
            raise EC2ClientError(
                "InvalidAMIName.Duplicate",
                f"AMI name {name} is already in use by AMI {ami.id}",
            )
    instance = backend.get_instance(instance_id)
    if instance.state not in ("running", "stopped", "pending", "stopping"):
        raise incorrect_state(instance, "imaged")
    tags = {
        kind: {
            tag["Key"]: tag["Value"]
            for spec in tag_specifications
            if spec["ResourceType"] == kind
            for tag in spec["Tags"]
        }
        for kind in ("image", "snapshot")
    }
    ami = moto_amis.Ami(
        backend,
        moto_amis.random_ami_id(),
        instance=instance,
        name=name,
        description=description,
        root_device_name=instance.root_device_name,
        root_device_type="ebs",
        hypervisor="xen",
        image_location=f"{backend.account_id}/{name}",
        snapshot_description=f"Created by CreateImage({instance_id}) for {{}}",
    )
    ami.state = "pending"
    ami.add_tags(tags["image"])
    ami.ebs_snapshot.add_tags(tags["snapshot"])
    # moto sets `encrypted` on the volume and not on the mapping.
    volumes = [
        backend.get_volume(device.volume_id) for _, device in instance.get_block_device_mapping
    ]
    size = int(volumes[0].size or 8) if volumes else 8
    image = images.Image(
        id=ami.id,
        name=name,
        region=backend.region_name,
        description=description or "",
        architecture=instance.architecture,
        root_device_name=instance.root_device_name,
        distro=instance.distro,
        base=str(instance.base),
        layers=[*instance.layers, ami.id],
        created=utcnow().isoformat(),
        instance_id=instance_id,
        volume_size=size,
        encrypted=bool(volumes and volumes[0].encrypted),
        tags=tags["image"],
        snapshot_tags=tags["snapshot"],
    )
    backend.amis[ami.id] = ami
    threading.Thread(
        target=_freeze, args=(instance, ami, image, no_reboot.get()), daemon=True
    ).start()
    return ami


def _freeze(instance: LabInstance, ami: Any, image: images.Image, no_reboot: bool) -> None:
    """Freeze the disk as EC2 does: a running instance is stopped for it and started again.

    With `no_reboot` the instance keeps running, and the AMI has the disk's content of some moment
    during the copy.
    """
    lab = LabInstance.machines.lab
    try:
        with instance._busy:
            running = instance.guest is not None and instance.state == "running"
            restart = running and not no_reboot
            if restart and instance.guest:
                state = copy.copy(instance._state)
                instance._set(STOPPING)
                instance.guest.power_off(STOP_TIMEOUT)
                instance._state = state
            if running and no_reboot:
                disks.copy(lab, instance.id, image.id)
            else:
                disks.freeze(lab, instance.id, image.id)
                instance.layers = image.layers
            LabInstance.machines.made[image.id] = image
            images.save(lab, image)
            ami.ebs_snapshot.status = "completed"
            ami.state = "available"
        if restart:
            instance._set(PENDING)
            instance._spawn(instance._power_on)
    except Exception:
        log.exception("%s: freezing %s failed", image.id, instance.id)
        ami.state = "failed"


def copying(original: Callable[..., Any]) -> Callable[..., Any]:
    def copy_image(backend: Any, source_image_id: str, source_region: str, **kwargs: Any) -> Any:
        ami = original(backend, source_image_id, source_region, **kwargs)
        source = LabInstance.machines.made.get(source_image_id)
        if source:
            # The copy uses the same frozen layers, so no data is copied.
            image = replace(source, id=ami.id, name=ami.name, region=backend.region_name, tags={})
            ami.root_device_name = source.root_device_name
            LabInstance.machines.made[ami.id] = image
            images.save(LabInstance.machines.lab, image)
        return ami

    return copy_image


def block_device_mappings(ami: Any) -> list[dict[str, Any]]:
    image = LabInstance.machines.made.get(ami.id)
    return [
        {
            "DeviceName": ami.root_device_name,
            "Ebs": {
                "SnapshotId": ami.ebs_snapshot.id,
                "VolumeSize": image.volume_size if image else 8,
                "DeleteOnTermination": True,
                "VolumeType": "gp3",
                "Encrypted": image.encrypted if image else False,
            },
        }
    ]


def deregistering(original: Callable[..., None]) -> Callable[..., None]:
    def deregister_image(backend: Any, ami_id: str) -> None:
        original(backend, ami_id)
        if LabInstance.machines.made.pop(ami_id, None):
            images.deregister(LabInstance.machines.lab, ami_id, LabInstance.machines.in_use())

    return deregister_image


def restore(backend: Any) -> None:
    """Register the AMIs of earlier lab processes in a new moto backend of their region."""
    for image in LabInstance.machines.made.values():
        if image.region != backend.region_name or image.id in backend.amis:
            continue
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
            tags=image.tags,
        )
        ami.instance_id = image.instance_id
        ami.ebs_snapshot.status = "completed"
        ami.ebs_snapshot.add_tags(image.snapshot_tags)
        for name, value in image.attributes.items():
            setattr(ami, name, value)
        backend.amis[image.id] = ami


def remember(backend: Any) -> None:
    """Save the tags and attributes of a backend's AMIs, after a call that may have changed them."""
    for image_id, image in list(LabInstance.machines.made.items()):
        ami = backend.amis.get(image_id)
        if ami is None:
            continue
        tags = {tag["key"]: tag["value"] for tag in ami.get_tags()}
        attributes = {
            name: getattr(ami, name)
            for name in ("deprecation_time", "imds_support", "deregistration_protection")
            if hasattr(ami, name)
        }
        current = replace(image, tags=tags, attributes=attributes)
        if current != image:
            LabInstance.machines.made[image_id] = current
            images.save(LabInstance.machines.lab, current)
