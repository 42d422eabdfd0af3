"""AMIs and disks that come from S3 or go there: import tasks, store and restore tasks.

What is imported is a disk: raw, or one that qemu-img makes raw. Exports are refused.

https://docs.aws.amazon.com/vm-import/latest/userguide/vmimport-image-import.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ami-store-restore.html
"""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from moto.core.utils import utcnow
from moto.iam.models import iam_backends

from lab.amis import archives
from lab.amis import images as entries
from lab.amis.images import Image
from lab.ec2 import account, images, imaging, known_images, registrations, snapshots
from lab.ec2.calls import Request, call, error, missing
from lab.guests.instances import LabInstance
from lab.storage import buckets, formats, volumes

_GIB = 1 << 30
_ROLE = "vmimport"
# What a restored AMI has of the one that was stored, besides its disks and tags.
_OF_THE_IMAGE = ("boot_mode", "tpm_support", "uefi_data", "imds_support", "ena_support")


@call("ImportSnapshot")
def _import_snapshot(request: Request) -> dict[str, Any]:
    """The disk is there when the call is answered; the task tells of it as EC2's do."""
    parameters = request.parameters
    _check_role(request, parameters.get("RoleName") or _ROLE)
    container = parameters.get("DiskContainer") or {}
    form = _format_of(container, ["RAW", *formats.names()])
    snapshot, detail = _snapshot_of(request, container, form)
    if snapshot:
        snapshot.add_tags(_tags(parameters, "snapshot"))
        if parameters.get("Description"):
            snapshot.description = parameters["Description"]
    task_id = f"import-snap-{secrets.token_hex(9)[:17]}"
    task = {
        "ImportTaskId": task_id,
        "Description": parameters.get("Description") or "",
        "SnapshotTaskDetail": detail,
        "Tags": _listed(_tags(parameters, "import-snapshot-task")),
    }
    account.of(request.backend).tasks[task_id] = task
    begun = {k: v for k, v in detail.items() if k not in ("SnapshotId", "StatusMessage")}
    begun |= {"Status": "active", "StatusMessage": "pending", "Progress": "0"}
    return task | {"SnapshotTaskDetail": begun}


@call("DescribeImportSnapshotTasks")
def _snapshot_tasks(request: Request) -> dict[str, Any]:
    return {"ImportSnapshotTasks": _tasks(request, "import-snap-")}


@call("ImportImage")
def _import_image(request: Request) -> dict[str, Any]:
    """An AMI of the first disk, by the task's name; the further disks are not taken."""
    parameters, backend = request.parameters, request.backend
    _check_role(request, parameters.get("RoleName") or _ROLE)
    containers = parameters.get("DiskContainers") or []
    if not containers:
        raise missing("DiskContainers")
    if len(containers) > 1:
        raise error("UnsupportedOperation", "AMI Kiln lab: ImportImage takes one disk")
    if containers[0].get("SnapshotId"):
        snapshot = snapshots.find(backend, containers[0]["SnapshotId"])
        if snapshot.id not in LabInstance.machines.contents:
            raise error(
                "UnsupportedOperation",
                f"AMI Kiln lab: {snapshot.id} is not a disk but a folder of an AMI's root",
            )
        detail = {"SnapshotId": snapshot.id, "Status": "completed", "Progress": "100"}
    else:
        form = _format_of(containers[0], ["RAW", "OVA", *formats.names()])
        snapshot, detail = _snapshot_of(request, containers[0], form)
    task_id = f"import-ami-{secrets.token_hex(9)[:17]}"
    ami = snapshot and registrations.of_disk(
        backend,
        snapshot,
        Image(
            id="",
            name=task_id,
            region=request.region,
            description=parameters.get("Description") or f"AWS-VMImport service: Linux - {task_id}",
            architecture=parameters.get("Architecture") or "x86_64",
            root_device_name="/dev/sda1",
            distro="",
            base="",
            layers=[],
            created="",
            instance_id="",
            volume_size=int(snapshot.volume.size),
            encrypted=bool(snapshot.encrypted),
            tags=_tags(parameters, "image"),
            attributes={"boot_mode": parameters.get("BootMode")},
        ),
    )
    task = {
        "ImportTaskId": task_id,
        "Description": parameters.get("Description") or "",
        "Architecture": parameters.get("Architecture") or "x86_64",
        "LicenseType": "BYOL",
        "Platform": "Linux",
        **({"ImageId": ami.id} if ami else {}),
        "SnapshotDetails": [detail],
        "Tags": _listed(_tags(parameters, "import-image-task")),
        "ami": ami,
    }
    account.of(backend).tasks[task_id] = task
    return _of_image(task) | {"Status": "active", "StatusMessage": "pending", "Progress": "1"}


@call("DescribeImportImageTasks")
def _image_tasks(request: Request) -> dict[str, Any]:
    return {"ImportImageTasks": [_of_image(task) for task in _tasks(request, "import-ami-")]}


def _of_image(task: dict[str, Any]) -> dict[str, Any]:
    """A task as it stands: its AMI is there when the disk's files have been copied."""
    shown = {key: value for key, value in task.items() if key != "ami"}
    if task["ami"] is None:
        (detail,) = task["SnapshotDetails"]
        return shown | {"Status": "deleted", "StatusMessage": detail["StatusMessage"]}
    if task["ami"].state == "pending":
        return shown | {"Status": "active", "StatusMessage": "converting", "Progress": "28"}
    if task["ami"].state == "failed":
        return shown | {"Status": "deleted", "StatusMessage": "ClientError: see lab.logs"}
    return shown | {"Status": "completed"}


@call("CreateStoreImageTask")
def _store(request: Request) -> dict[str, Any]:
    parameters, backend = request.parameters, request.backend
    ami, bucket = images.own(backend, parameters["ImageId"]), parameters["Bucket"]
    _check_bucket(bucket)
    if ami.state != "available":
        raise error("InvalidAMIID.Unavailable", f"The image ID '{ami.id}' is {ami.state}")
    key = f"{ami.id}.bin"
    tags = {tag["Key"]: tag["Value"] for tag in parameters.get("S3ObjectTags") or []}
    known_images.remember(backend)
    content = archives.packed(LabInstance.machines.lab, LabInstance.machines.made[ami.id])
    buckets.write(bucket, key, content, tags)
    account.of(backend).tasks[f"store-{ami.id}"] = {
        "AmiId": ami.id,
        "TaskStartTime": utcnow(),
        "Bucket": bucket,
        "S3objectKey": key,
        "ProgressPercentage": 100,
        "StoreTaskState": "Completed",
    }
    return {"ObjectKey": key}


@call("DescribeStoreImageTasks")
def _store_tasks(request: Request) -> dict[str, Any]:
    tasks = [
        task
        for name, task in account.of(request.backend).tasks.items()
        if name.startswith("store-")
        and task["AmiId"] in (request.parameters.get("ImageIds") or [task["AmiId"]])
    ]
    return {"StoreImageTaskResults": tasks}


@call("CreateRestoreImageTask")
def _restore(request: Request) -> dict[str, Any]:
    parameters, backend = request.parameters, request.backend
    _check_bucket(parameters["Bucket"])
    content = buckets.read(parameters["Bucket"], parameters["ObjectKey"])
    if content is None:
        raise error(
            "InvalidParameterValue",
            f"The object {parameters['ObjectKey']} does not exist in the bucket",
        )
    if parameters.get("Name"):
        imaging.check_name(backend, parameters["Name"])
    machines = LabInstance.machines
    try:
        image = archives.unpacked(machines.lab, content)
    except archives.NotStoredError as wrong:
        raise error("InvalidParameterValue", f"AMI Kiln lab: {wrong}") from None
    image = replace(
        image,
        name=parameters.get("Name") or f"{image.name} restored {image.id}",
        region=request.region,
        created=utcnow().isoformat(),
        tags=image.tags | _tags(parameters, "image"),
        snapshot_tags=_tags(parameters, "snapshot"),
        attributes={
            name: image.attributes[name] for name in _OF_THE_IMAGE if name in image.attributes
        },
        volumes=[
            volume | {"Ebs": {key: v for key, v in volume["Ebs"].items() if key != "SnapshotId"}}
            for volume in image.volumes
        ],
    )
    machines.made[image.id] = image
    known_images.registered(backend, image)
    entries.save(machines.lab, image)
    return {"ImageId": image.id}


def _format_of(container: dict[str, Any], allowed_formats: list[str]) -> str:
    form = str(container.get("Format") or "").upper()
    if form not in allowed_formats or not container.get("UserBucket"):
        raise error(
            "UnsupportedOperation",
            "AMI Kiln lab: disks are imported from a bucket (UserBucket) in a format of "
            f"{', '.join(allowed_formats)}, not {form or 'none'}",
        )
    return form


def _snapshot_of(
    request: Request, container: dict[str, Any], form: str
) -> tuple[Any, dict[str, Any]]:
    """The snapshot of a disk in S3, None if it is not a disk, and how a task shows it."""
    place = container["UserBucket"]
    bucket, key = place.get("S3Bucket") or "", place.get("S3Key") or ""
    _check_bucket(bucket)
    content = buckets.read(bucket, key)
    if content is None:
        raise error("InvalidParameter", f"The object {key} does not exist in the bucket {bucket}")
    detail: dict[str, Any] = {
        "DiskImageSize": float(len(content)),
        "Format": "VMDK" if form == "OVA" else form,
        "UserBucket": {"S3Bucket": bucket, "S3Key": key},
    }
    with tempfile.TemporaryDirectory(dir=LabInstance.machines.lab.state) as folder:
        try:
            disk = _raw(form, content, Path(folder))
        except formats.NotADiskError as wrong:
            message = f"ClientError: Disk validation failed [{wrong}]"
            return None, detail | {"Status": "deleted", "StatusMessage": message}
        except formats.NoProgramError as missing_program:
            raise error("UnsupportedOperation", f"AMI Kiln lab: {missing_program}") from None
        snapshot = _keep(request, disk)
    return snapshot, detail | {
        "Progress": "100",
        "SnapshotId": snapshot.id,
        "Status": "completed",
    }


def _raw(form: str, content: bytes, folder: Path) -> Path:
    """The raw disk of an object, in a folder."""
    source, disk = folder / "given", folder / "raw"
    source.write_bytes(content)
    if form == "RAW":
        return source
    if form == "OVA":
        form, archive, source = "VMDK", source, folder / "vmdk"
        formats.disk_of_ova(archive, source)
    formats.to_raw(form, source, disk)
    return disk


def _keep(request: Request, disk: Path) -> Any:
    """A snapshot that has a raw disk, which is moved."""
    backend, size = request.backend, disk.stat().st_size
    volume = backend.create_volume(
        size=max(1, -(-size // _GIB)), zone_name=f"{request.region}a", encrypted=False
    )
    snapshot = backend.create_snapshot(volume.id, "Imported by the lab")
    backend.delete_volume(volume.id)
    file = volumes.snapshot_file(LabInstance.machines.lab, snapshot.id)
    file.parent.mkdir(exist_ok=True)
    disk.rename(file)
    LabInstance.machines.contents[snapshot.id] = file
    return snapshot


def _check_role(request: Request, name: str) -> None:
    """VM Import works with a role of the account. Raises the service's error if it is missing."""
    if name not in {role.name for role in iam_backends[request.account]["aws"].roles.values()}:
        raise error(
            "InvalidParameter",
            f"The service role {name} provided does not exist or does not have sufficient "
            "permissions",
        )


def _check_bucket(name: str) -> None:
    if not buckets.exists(name):
        raise error("InvalidParameterValue", f"The bucket {name} does not exist")


def _tasks(request: Request, begin: str) -> list[dict[str, Any]]:
    tasks = account.of(request.backend).tasks
    wanted = request.parameters.get("ImportTaskIds") or []
    for task_id in wanted:
        if task_id not in tasks or not task_id.startswith(begin):
            raise error("InvalidParameterValue", f"The task {task_id} does not exist")
    return [
        task
        for task_id, task in tasks.items()
        if task_id.startswith(begin) and (not wanted or task_id in wanted)
    ]


def _tags(parameters: dict[str, Any], kind: str) -> dict[str, str]:
    return {
        tag["Key"]: tag["Value"]
        for specification in parameters.get("TagSpecifications") or []
        if specification.get("ResourceType") == kind
        for tag in specification.get("Tags", [])
    }


def _listed(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
