"""Disks behind moto's AMIs: CreateImage freezes a disk, DeregisterImage releases it."""

from __future__ import annotations

import copy
import logging
import re
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import moto.ec2.models.amis as moto_amis
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError, InvalidParameterDependency
from moto.ec2.models import ec2_backends

from lab import disks, images
from lab.instances import PENDING, STOP_TIMEOUT, STOPPING, LabInstance, incorrect_state

# GiB of a public AMI's root volume.
SIZE_OF_PUBLIC = 8

log = logging.getLogger("lab.imaging")

# CreateImage's NoReboot, which moto does not pass on; lab.ec2.instances sets it for each request.
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
no_reboot: ContextVar[bool] = ContextVar("no_reboot", default=False)
# And its BlockDeviceMappings.
devices: ContextVar[list[dict[str, Any]]] = ContextVar("devices", default=[])  # noqa: B039


def create_image(
    backend: Any, instance_id: str, name: str, description: str, tag_specifications: list[Any]
) -> Any:
    """CreateImage: freeze the instance's disk and register the AMI with its size and tags."""
    _check_name(backend, name)
    instance = backend.get_instance(instance_id)
    if instance.state not in ("running", "stopped", "pending", "stopping"):
        raise incorrect_state(instance, "imaged")
    if instance.has_own_kernel:
        raise EC2ClientError(
            "UnsupportedOperation",
            "An instance that boots its AMI's own kernel writes to no disk of the lab.",
        )
    tags = _asked_tags(tag_specifications)
    launched_from = backend.amis.get(instance.image_id)
    boot_mode = launched_from.boot_mode if launched_from else None
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
        boot_mode=boot_mode,
        snapshot_description=f"Created by CreateImage({instance_id}) for {{}}",
    )
    ami.state = "pending"
    ami.add_tags(tags["image"])
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
        attributes={"boot_mode": boot_mode},
        volumes=_other_volumes(backend, instance),
    )
    _describe_disk(backend, ami, image)
    backend.amis[ami.id] = ami
    threading.Thread(
        target=_freeze, args=(instance, ami, image, no_reboot.get()), daemon=True
    ).start()
    return ami


def wait_until_made(ami: Any, timeout: float = 3.0) -> None:
    """Wait a moment for an AMI that is nearly made.

    Packer's amazon plugin 1.8.2 sleeps 15 s when its first DescribeImages says `pending`, and here
    an AMI takes a second.
    """
    deadline = time.monotonic() + timeout
    while ami.state == "pending" and time.monotonic() < deadline:
        time.sleep(0.02)


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
                # Before anybody else may look: a second CreateImage waits for this one.
                instance._set(PENDING)
        if restart:
            instance._spawn(instance._power_on)
    except Exception:
        log.exception("%s: freezing %s failed", image.id, instance.id)
        ami.state = "failed"


# What a copy of an AMI has from its source, besides its disk and architecture.
_OF_THE_SOURCE = ("boot_mode", "sriov", "imds_support")


def copy_image(response: Any) -> ActionResult:
    """CopyImage. `response` is moto's AmisResponse, with the call's parameters.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CopyImage.html
    """
    asked = response._get_param
    backend = response.ec2_backend
    region = asked("SourceRegion")
    source_id, name = asked("SourceImageId"), asked("Name")
    source = _source_of_copy(backend, source_id, region)
    _check_name(backend, name)
    image = _image_of(source, region)
    tags = _asked_tags(asked("TagSpecifications", []))
    if asked("CopyImageTags"):
        own = {tag["key"]: tag["value"] for tag in source.get_tags()}
        tags["image"] = {
            key: value for key, value in own.items() if not key.startswith("aws:")
        } | tags["image"]
    encrypted = asked("Encrypted")
    if asked("KmsKeyId") and not encrypted:
        raise InvalidParameterDependency("KmsKeyId", "Encrypted")
    if image.encrypted and encrypted is False:
        raise EC2ClientError(
            "InvalidParameterValue",
            "You cannot create an unencrypted copy of an encrypted backing snapshot",
        )
    response.error_on_dryrun()
    image = replace(
        image,
        id=moto_amis.random_ami_id(),
        name=name,
        region=backend.region_name,
        description=asked("Description") or image.description,
        created=utcnow().isoformat(),
        encrypted=bool(image.encrypted or encrypted or backend.ebs_encryption_by_default),
        kms_key_id=asked("KmsKeyId"),
        tags=tags["image"],
        snapshot_tags=tags["snapshot"],
        attributes={
            **{key: getattr(source, key) for key in _OF_THE_SOURCE if hasattr(source, key)},
            "source_image_id": source_id,
            "source_image_region": region,
        },
    )
    ami = _registered(backend, image)
    ami.state = ami.ebs_snapshot.status = "pending"
    # AWS does not document this text, but tools that clean up snapshots read the AMIs' ids from it.
    ami.ebs_snapshot.description = (
        f"Copied for DestinationAmi {ami.id} from SourceAmi {source_id} "
        f"for SourceSnapshot {source.ebs_snapshot.id}. Task created on {time.time_ns() // 10**6:,}."
    )
    threading.Thread(target=_complete_copy, args=(ami, image), daemon=True).start()
    return ActionResult({"ImageId": ami.id})


def _complete_copy(ami: Any, image: images.Image) -> None:
    """The copy uses the same frozen layers, so no data is copied."""
    machines = LabInstance.machines
    try:
        if not image.base:
            base = machines.base(image.distro, image.architecture)
            image = replace(image, base=str(base))
        machines.made[image.id] = image
        images.save(machines.lab, image)
        ami.ebs_snapshot.status = "completed"
        ami.state = "available"
    except Exception:
        log.exception("%s: the copy failed", image.id)
        ami.state = "failed"


def _source_of_copy(backend: Any, source_id: str, region: str) -> Any:
    found = ec2_backends[backend.account_id][region].describe_images(ami_ids=[source_id])
    if not found or found[0].state != "available":
        raise EC2ClientError(
            "InvalidAMIID.Unavailable", f"The image ID '{source_id}' is no longer available"
        )
    return found[0]


def _image_of(ami: Any, region: str) -> images.Image:
    """What the lab knows of an AMI, its own or a public one."""
    machines = LabInstance.machines
    if ami.id in machines.made:
        return machines.made[ami.id]
    return images.Image(
        id=ami.id,
        name=ami.name,
        region=region,
        description=ami.description or "",
        architecture=ami.architecture,
        root_device_name=ami.root_device_name,
        distro=machines.layers(ami.id)[0],
        base="",
        layers=[],
        created="",
        instance_id="",
        volume_size=ami.block_device_mappings[0]["Ebs"]["VolumeSize"],
        encrypted=False,
    )


# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html, parameter Name.
_NAME = re.compile(r"[A-Za-z0-9()\[\] ./\-'@_]{3,128}")


def _check_name(backend: Any, name: str) -> None:
    """Raise EC2's error for a name that no AMI can have, or that another one has."""
    if not name:
        raise EC2ClientError("MissingParameter", "The request must contain the parameter name")
    if not _NAME.fullmatch(name):
        raise EC2ClientError(
            "InvalidAMIName.Malformed",
            "AMI names must be between 3 and 128 characters long, and may contain letters, "
            "numbers, spaces and ( ) [ ] . / - ' @ _",
        )
    for ami in list(backend.amis.values()):
        if ami.name == name and ami.owner_id == backend.account_id:
            raise EC2ClientError(
                "InvalidAMIName.Duplicate",
                f"AMI name {name} is already in use by AMI {ami.id}",
            )


def _asked_tags(specifications: list[Any]) -> dict[str, dict[str, str]]:
    """The tags of the AMI and of its snapshots."""
    tags: dict[str, dict[str, str]] = {"image": {}, "snapshot": {}}
    for specification in specifications:
        kind = specification["ResourceType"]
        if kind not in tags:
            raise EC2ClientError(
                "InvalidParameterValue",
                f"'{kind}' is not a valid taggable resource type for this operation.",
            )
        tags[kind] |= {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
    return tags


def _other_volumes(backend: Any, instance: Any) -> list[dict[str, Any]]:
    """The volumes of an AMI besides its root: the instance's, changed as CreateImage asks."""
    found: dict[str, dict[str, Any]] = {}
    for device, attached in instance.get_block_device_mapping:
        volume = backend.get_volume(attached.volume_id)
        found[device] = {
            "VolumeSize": int(volume.size),
            "DeleteOnTermination": bool(attached.delete_on_termination),
            "VolumeType": volume.volume_type,
            "Encrypted": bool(volume.encrypted),
        }
    for asked in devices.get():
        device = asked.get("DeviceName", "")
        if asked.get("NoDevice") is not None:
            found.pop(device, None)
        elif asked.get("Ebs"):
            known = found.get(device, {"DeleteOnTermination": True, "VolumeType": "gp2"})
            found[device] = {"Encrypted": False} | known | asked["Ebs"]
    found.pop(instance.root_device_name, None)
    return [{"DeviceName": device, "Ebs": ebs} for device, ebs in found.items()]


def block_device_mappings(ami: Any) -> list[dict[str, Any]]:
    image = LabInstance.machines.made.get(ami.id)
    return [
        {
            "DeviceName": ami.root_device_name,
            "Ebs": {
                "SnapshotId": ami.ebs_snapshot.id,
                "VolumeSize": image.volume_size if image else SIZE_OF_PUBLIC,
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
        if LabInstance.machines.made.pop(ami_id, None):
            images.deregister(LabInstance.machines.lab, ami_id, LabInstance.machines.in_use())

    return deregister_image


def restore(backend: Any) -> None:
    """Register the AMIs of earlier lab processes in a new moto backend of their region."""
    for image in LabInstance.machines.made.values():
        if image.region != backend.region_name or image.id in backend.amis:
            continue
        _registered(backend, image)


def _registered(backend: Any, image: images.Image) -> Any:
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
    _describe_disk(backend, ami, image)
    for name, value in image.attributes.items():
        setattr(ami, name, value)
    backend.amis[image.id] = ami
    return ami


def _describe_disk(backend: Any, ami: Any, image: images.Image) -> None:
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
    for one in image.volumes:
        ebs = {name: value for name, value in one["Ebs"].items() if name != "SnapshotId"}
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
        ami.other_devices.append({"DeviceName": one["DeviceName"], "Ebs": ebs})


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


def register(backend: Any, source: Any, image: images.Image) -> Any:
    """RegisterImage: an AMI whose root volume is the snapshot of `source`; returns moto's."""
    _check_name(backend, image.name)
    machines = LabInstance.machines
    known = _image_of(source, backend.region_name)
    base = known.base or str(machines.base(known.distro, known.architecture))
    made = replace(
        known,
        id=moto_amis.random_ami_id(),
        name=image.name,
        description=image.description,
        root_device_name=image.root_device_name,
        architecture=image.architecture,
        volume_size=image.volume_size,
        created=utcnow().isoformat(),
        instance_id="",
        base=base,
        tags=image.tags,
        snapshot_tags={},
        attributes=image.attributes,
        volumes=image.volumes,
    )
    machines.made[made.id] = made
    ami = _registered(backend, made)
    # It has the snapshot itself, not a copy.
    backend.snapshots.pop(ami.ebs_snapshot.id, None)
    ami.ebs_snapshot = source.ebs_snapshot
    images.save(machines.lab, made)
    return ami
