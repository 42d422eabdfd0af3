"""RegisterImage as it is called; `lab/ec2/registrations.py` makes the AMI.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RegisterImage.html
"""

from __future__ import annotations

from typing import Any

from lab.amis.images import Image
from lab.ec2 import registrations, snapshots
from lab.ec2.calls import Request, call, error
from lab.guests.instances import LabInstance

_DEFAULT_ROOT = "/dev/sda1"


@call("RegisterImage")
def _register(request: Request) -> dict[str, Any]:
    """The lab has the disk of an AMI's root snapshot, and that of a volume besides the root."""
    parameters, backend = request.parameters, request.backend
    root = parameters.get("RootDeviceName") or _DEFAULT_ROOT
    devices = {entry.get("DeviceName"): entry.get("Ebs") or {} for entry in _devices(parameters)}
    if root not in devices:
        raise error("InvalidBlockDeviceMapping", f"The block devices lack the root device {root}")
    snapshot = snapshots.find(backend, devices[root].get("SnapshotId"))
    source = next(
        (ami for ami in list(backend.amis.values()) if ami.ebs_snapshot is snapshot), None
    )
    is_disk = snapshot.id in LabInstance.machines.contents
    if source is None and not is_disk:
        raise error(
            "UnsupportedOperation",
            f"AMI Kiln lab: RegisterImage takes the root snapshot of an AMI, or one of a volume "
            f"that a guest has had as a second disk; {snapshot.id} is neither",
        )
    architecture = parameters.get("Architecture") or "i386"
    if source and not is_disk and architecture != source.architecture:
        raise error(
            "UnsupportedOperation",
            f"AMI Kiln lab: RegisterImage of {snapshot.id} needs its architecture, "
            f"{source.architecture}",
        )
    attributes = {
        "boot_mode": parameters.get("BootMode"),
        "tpm_support": parameters.get("TpmSupport"),
        "uefi_data": parameters.get("UefiData"),
        "imds_support": parameters.get("ImdsSupport"),
        "ena_support": bool(parameters.get("EnaSupport")),
        "sriov_net_support": parameters.get("SriovNetSupport"),
    }
    tags = {
        tag["Key"]: tag["Value"]
        for specification in parameters.get("TagSpecifications") or []
        if specification.get("ResourceType") == "image"
        for tag in specification.get("Tags", [])
    }
    size = devices[root].get("VolumeSize") or snapshot.volume.size
    others = [
        {"DeviceName": name, "Ebs": {"VolumeType": "gp2", "DeleteOnTermination": True} | ebs}
        for name, ebs in devices.items()
        if name != root and ebs
    ]
    wanted = Image(
        id="",
        name=parameters["Name"],
        region=request.region,
        description=parameters.get("Description") or "",
        architecture=architecture,
        root_device_name=root,
        distro="",
        base="",
        layers=[],
        created="",
        instance_id="",
        volume_size=int(size),
        encrypted=bool(snapshot.encrypted),
        tags=tags,
        attributes=attributes,
        volumes=_sized(backend, others),
    )
    if is_disk:
        return {"ImageId": registrations.of_disk(backend, snapshot, wanted).id}
    return {"ImageId": registrations.of_image(backend, source, wanted).id}


def _devices(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        mapping
        for mapping in parameters.get("BlockDeviceMappings") or []
        if mapping.get("NoDevice") is None
    ]


def _sized(backend: Any, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for device in devices:
        ebs = device["Ebs"]
        if "VolumeSize" not in ebs:
            ebs["VolumeSize"] = snapshots.find(backend, ebs.get("SnapshotId")).volume.size
    return devices
