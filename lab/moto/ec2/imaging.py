"""AMIs are made: CreateImage freezes a disk, CopyImage uses it again."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import threading
import time
from dataclasses import replace
from typing import Any

import moto.ec2.models.amis as moto_amis
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError, InvalidParameterDependency
from moto.ec2.models import ec2_backends

from lab.machine import disks, images
from lab.moto import volume_keys
from lab.moto.ec2 import known_images, volumes
from lab.moto.ec2.calls import Request, call
from lab.moto.instances import PENDING, STOP_TIMEOUT, STOPPING, LabInstance, incorrect_state

log = logging.getLogger("lab.imaging")


@call("CreateImage", tries=True)
def create_image(request: Request) -> dict[str, Any]:
    """Freeze the instance's disk and register the AMI with its size and tags.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
    """
    backend, parameters = request.backend, request.parameters
    instance_id, name = parameters["InstanceId"], parameters["Name"]
    description = parameters.get("Description") or ""
    check_name(backend, name)
    instance = backend.get_instance(instance_id)
    asked = {entry.get("DeviceName") for entry in parameters.get("BlockDeviceMappings") or []}
    if asked - {instance.root_device_name}:
        raise EC2ClientError("UnsupportedOperation", volumes.ROOT_ONLY)
    if instance.state not in ("running", "stopped", "pending", "stopping"):
        raise incorrect_state(instance, "imaged")
    if parameters.get("NoReboot") and instance.state != "stopped":
        raise EC2ClientError(
            "UnsupportedOperation",
            "AMI Kiln lab: CreateImage has no NoReboot of a running instance",
        )
    if instance.has_own_kernel:
        raise EC2ClientError(
            "UnsupportedOperation",
            "An instance that boots its AMI's own kernel writes to no disk of the lab.",
        )
    tags = _asked_tags(parameters.get("TagSpecifications") or [])
    request.response.error_on_dryrun()
    launched_from = backend.amis.get(instance.image_id)
    boot_mode = launched_from.boot_mode if launched_from else None
    ami_id = moto_amis.random_ami_id()
    ami = moto_amis.Ami(
        backend,
        ami_id,
        instance=instance,
        name=name,
        description=description,
        root_device_name=instance.root_device_name,
        root_device_type="ebs",
        hypervisor="xen",
        image_location=f"{backend.account_id}/{name}",
        boot_mode=boot_mode,
        snapshot_description=f"Created by CreateImage({instance_id}) for {ami_id}",
    )
    ami.state = "pending"
    ami.add_tags(tags["image"])
    # moto sets `encrypted` on the volume and not on the mapping.
    attached = instance.block_device_mapping.get(instance.root_device_name)
    root = backend.get_volume(attached.volume_id) if attached else None
    image = images.Image(
        id=ami.id,
        name=name,
        region=backend.region_name,
        description=description,
        architecture=instance.architecture,
        root_device_name=instance.root_device_name,
        distro=instance.distro,
        base=str(instance.base),
        layers=[*instance.layers, ami.id],
        created=utcnow().isoformat(),
        instance_id=instance_id,
        volume_size=int(root.size or 8) if root else 8,
        encrypted=bool(root and root.encrypted),
        kms_key_id=_lasting(backend, root.kms_key_id) if root else None,
        tags=tags["image"],
        snapshot_tags=tags["snapshot"],
        attributes={"boot_mode": boot_mode},
    )
    known_images.describe_disk(backend, ami, image)
    backend.amis[ami.id] = ami
    threading.Thread(target=_freeze, args=(instance, ami, image), daemon=True).start()
    return {"ImageId": ami.id}


def _freeze(instance: LabInstance, ami: Any, image: images.Image) -> None:
    """Freeze the disk as EC2 does: a running instance is stopped for it and started again."""
    lab = LabInstance.machines.lab
    try:
        with images.in_progress(image.id, *image.layers), instance._busy:
            restart = instance.guest is not None and instance.state == "running"
            if restart and instance.guest:
                state = copy.copy(instance._state)
                instance._set(STOPPING)
                instance.guest.power_off(STOP_TIMEOUT)
                instance._state = state
            disks.freeze(lab, instance.id, image.id)
            instance.layers = image.layers
            LabInstance.machines.made[image.id] = image
            known_images.remember(ami.ec2_backend)
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


@call("CopyImage", tries=True)
def copy_image(request: Request) -> dict[str, Any]:
    """Register an AMI with the disk of another one. moto: no tags, no encryption, 15 GiB.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CopyImage.html
    """
    backend, parameter = request.backend, request.parameters.get
    region, name = request.parameters["SourceRegion"], request.parameters["Name"]
    source_id = request.parameters["SourceImageId"]
    source = _source_of_copy(backend, source_id, region)
    check_name(backend, name)
    image = image_of(source, region)
    tags = _asked_tags(parameter("TagSpecifications") or [])
    if parameter("CopyImageTags"):
        own = {tag["key"]: tag["value"] for tag in source.get_tags()}
        tags["image"] = {
            key: value for key, value in own.items() if not key.startswith("aws:")
        } | tags["image"]
    encrypted = parameter("Encrypted")
    if parameter("KmsKeyId") and not encrypted:
        raise InvalidParameterDependency("KmsKeyId", "Encrypted")
    if image.encrypted and encrypted is False:
        raise EC2ClientError(
            "InvalidParameterValue",
            "You cannot create an unencrypted copy of an encrypted backing snapshot",
        )
    request.response.error_on_dryrun()
    requested = parameter("KmsKeyId")
    key = volume_keys.arn_of(backend, requested) if requested else None
    image = replace(
        image,
        id=moto_amis.random_ami_id(),
        name=name,
        region=backend.region_name,
        description=parameter("Description") or image.description,
        created=utcnow().isoformat(),
        encrypted=bool(image.encrypted or encrypted or backend.ebs_encryption_by_default),
        kms_key_id=_lasting(backend, key or requested),
        tags=tags["image"],
        snapshot_tags=tags["snapshot"],
        snapshots={},
        attributes={
            **{key: getattr(source, key) for key in _OF_THE_SOURCE if hasattr(source, key)},
            "source_image_id": source_id,
            "source_image_region": region,
        },
    )
    ami = known_images.registered(backend, image)
    ami.state = ami.ebs_snapshot.status = "pending"
    # AWS does not document this text, but tools that clean up snapshots read the AMIs' ids from it.
    ami.ebs_snapshot.description = (
        f"Copied for DestinationAmi {ami.id} from SourceAmi {source_id} "
        f"for SourceSnapshot {source.ebs_snapshot.id}. Task created on {time.time_ns() // 10**6:,}."
    )
    kept = contextlib.ExitStack()  # from now on: the source may be deregistered at once
    kept.enter_context(images.in_progress(image.id, source_id, *image.layers))
    # The reference of CopyImage: EC2 notices a wrong key when it has answered the call.
    unknown = requested and not key
    wrong = f"The KMS key {requested} does not exist in {backend.region_name}" if unknown else ""
    threading.Thread(target=_complete_copy, args=(ami, image, kept, wrong), daemon=True).start()
    return {"ImageId": ami.id}


def _lasting(backend: Any, key: str | None) -> str | None:
    """The key that the lab remembers: AWS's own is another one in each lab."""
    return None if volume_keys.is_awss_own(backend, key) else key


def _complete_copy(ami: Any, image: images.Image, kept: contextlib.ExitStack, wrong: str) -> None:
    """The copy uses the same frozen layers, so no data is copied. `wrong`: why it
    fails."""
    machines = LabInstance.machines
    with kept:
        if wrong:
            # How EC2 writes it is assumed.
            ami.state_reason = {"Code": "Client.InvalidKmsKey", "Message": wrong}
            ami.state = "failed"
            return
        try:
            if not image.base:
                base = machines.base(image.distro, image.architecture)
                image = replace(image, base=str(base))
            machines.made[image.id] = image
            known_images.remember(ami.ec2_backend)
            ami.ebs_snapshot.status = "completed"
            ami.state = "available"
        except Exception:
            log.exception("%s: the copy failed", image.id)
            ami.state = "failed"


def no_region(name: Any) -> EC2ClientError:
    """EC2's error for a copy from a region that does not exist; its words are assumed."""
    return EC2ClientError(
        "InvalidParameterValue", f"Value ({name}) for parameter sourceRegion is invalid."
    )


def _source_of_copy(backend: Any, source_id: str, region: str) -> Any:
    try:
        there = ec2_backends[backend.account_id][region]
    except KeyError:
        raise no_region(region) from None
    sources = there.describe_images(ami_ids=[source_id])
    if not sources or sources[0].state != "available":
        raise EC2ClientError(
            "InvalidAMIID.Unavailable", f"The image ID '{source_id}' is no longer available"
        )
    return sources[0]


def image_of(ami: Any, region: str) -> images.Image:
    """Return the lab's entry of an AMI, its own or a public one."""
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


def check_name(backend: Any, name: str) -> None:
    """Raise EC2's error for a name that no AMI can have, or that another one has."""
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
