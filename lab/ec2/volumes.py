"""Volumes and snapshots: what is done with them happens to the files behind them.

https://docs.aws.amazon.com/ebs/latest/userguide/ebs-volumes.html
"""

from __future__ import annotations

from typing import Any

from lab.ec2 import imaging
from lab.ec2.calls import Request, call, error, is_device
from lab.guests.guest import Guest
from lab.guests.instances import LabInstance
from lab.storage import loops, volumes


@call("AttachVolume", tries=True)
def _attach(request: Request) -> Any:
    """A running guest gets the volume as a block device; a stopped one has it when it starts."""
    backend, parameters = request.backend, request.parameters
    volume = backend.get_volume(parameters["VolumeId"])
    instance = backend.get_instance(parameters["InstanceId"])
    device = parameters["Device"]
    if not is_device(device):
        # As in https://github.com/sous-chefs/aws/issues/134
        raise error(
            "InvalidParameterValue",
            f"Value ({device}) for parameter device is invalid. {device} is not a valid EBS device "
            "name.",
        )
    if volume.attachment is not None:
        raise error(
            "VolumeInUse",
            f"{volume.id} is already attached to an instance",
        )
    if instance.state not in ("running", "stopped", "pending", "stopping"):
        raise error("IncorrectState", f"Instance '{instance.id}' is not 'running' or 'stopped'.")
    if device in instance.block_device_mapping:
        raise error(
            "InvalidParameterValue",
            f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use",
        )
    machines = LabInstance.machines
    is_its_root = getattr(volume, "is_root", False) and device == instance.root_device_name
    if not is_its_root and (
        getattr(volume, "is_root", False) or machines.is_folder(backend, volume.snapshot_id)
    ):
        raise error(
            "UnsupportedOperation",
            f"AMI Kiln lab: {volume.id} is or comes from a root volume, which is a folder here and "
            "no disk",
        )
    if instance.has_own_kernel:
        raise error(
            "UnsupportedOperation",
            f"AMI Kiln lab: {instance.id} boots its AMI's own kernel, and has its root disk alone",
        )
    made = request.of_moto().result
    if device == instance.root_device_name and not is_its_root:
        machines.disk(volume, device)
    if instance.guest:
        try:
            instance.guest.disks.attach(machines.disk(volume, device))
        except loops.NoLoopDeviceError as none:
            backend.detach_volume(volume.id, instance.id, device)
            raise error(
                "UnsupportedOperation",
                f"AMI Kiln lab: this machine has no loop device for AttachVolume: {none}",
            ) from None
    return made


@call("DetachVolume", tries=True)
def _detach(request: Request) -> Any:
    """The reference: the instance's id is only needed for a volume of several instances."""
    volume_id = request.parameters["VolumeId"]
    attachment = request.backend.get_volume(volume_id).attachment
    if attachment is None:
        raise error("IncorrectState", f"Volume '{volume_id}' is in the 'available' state.")
    instance, device = attachment.instance, attachment.device
    if device == instance.root_device_name and instance.state != "stopped":
        raise error(
            "OperationNotPermitted",
            f"Unable to detach root volume '{device}' from instance '{instance.id}'",
        )
    request.response.params = {"InstanceId": attachment.instance.id, **request.parameters}
    done = request.of_moto().result
    if isinstance(instance.guest, Guest):
        instance.guest.disks.detach(volume_id)
    return done


@call("CreateSnapshot", tries=True)
def _snapshot(request: Request) -> Any:
    made = request.of_moto().result
    _keep(made, request.backend)
    return made


@call("CreateSnapshots", tries=True)
def _snapshots(request: Request) -> Any:
    made = request.of_moto().result
    for snapshot in made["Snapshots"]:
        _keep(snapshot, request.backend)
    return made


@call("CopySnapshot", tries=True)
def _copy(request: Request) -> Any:
    machines = LabInstance.machines
    try:
        made = request.of_moto().result
    except KeyError:  # moto's, of a region that it does not know
        raise imaging.no_region(request.parameters["SourceRegion"]) from None
    content = machines.contents.get(request.parameters["SourceSnapshotId"])
    if content:
        own = volumes.snapshot_file(machines.lab, _id(made))
        volumes.copy(content, own)
        machines.contents[_id(made)] = own
    return made


def _keep(snapshot: Any, backend: Any) -> None:
    """Copy the volume's file as it is now, if it has one: a root volume's disk is a folder."""
    machines = LabInstance.machines
    volume = backend.snapshots[_id(snapshot)].volume
    file = volumes.file(machines.lab, volume.id)
    content = file if file.exists() else machines.contents.get(volume.snapshot_id)
    if content is None:
        return
    guest = volume.attachment and volume.attachment.instance.guest
    if isinstance(guest, Guest):
        guest.disks.flush(volume.id)
    own = volumes.snapshot_file(machines.lab, _id(snapshot))
    volumes.copy(content, own)
    machines.contents[_id(snapshot)] = own


def _id(snapshot: Any) -> str:
    """The id of a snapshot that moto answers: its own object, or a dictionary."""
    return str(snapshot["SnapshotId"] if isinstance(snapshot, dict) else snapshot.id)
