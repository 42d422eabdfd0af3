"""Disks and AMIs that come from S3 and go there.

https://docs.aws.amazon.com/vm-import/latest/userguide/vmimport-import-snapshot.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ami-store-restore.html
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.storage import formats

BUCKET = "disks-and-images"
DISK = b"a raw disk".ljust(1 << 20, b"\0")


@pytest.fixture(scope="module")
def s3(client: Callable[..., Any]) -> Any:
    made = client("s3")
    made.create_bucket(Bucket=BUCKET)
    made.put_object(Bucket=BUCKET, Key="disk.raw", Body=DISK)
    return made


@pytest.fixture(scope="module")
def role(client: Callable[..., Any]) -> str:
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "vmie.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    client("iam").create_role(RoleName="vmimport", AssumeRolePolicyDocument=json.dumps(trust))
    return "vmimport"


def disk(key: str = "disk.raw", form: str = "RAW", bucket: str = BUCKET) -> dict[str, Any]:
    return {"Format": form, "UserBucket": {"S3Bucket": bucket, "S3Key": key}}


def test_without_its_role_nothing_is_imported(ec2: Any, s3: Any, refused: Any) -> None:
    code, message = refused(ec2.import_snapshot, DiskContainer=disk(), RoleName="none-such")
    assert (code, "The service role none-such provided does not exist" in message) == (
        "InvalidParameter",
        True,
    )


def test_a_raw_disk_becomes_a_snapshot_of_which_volumes_are_made(
    ec2: Any, s3: Any, role: str, refused: Any
) -> None:
    tags = [{"ResourceType": "snapshot", "Tags": [{"Key": "team", "Value": "ml"}]}]
    begun = ec2.import_snapshot(DiskContainer=disk(), Description="mine", TagSpecifications=tags)
    assert begun["SnapshotTaskDetail"]["Status"] == "active"
    (task,) = ec2.describe_import_snapshot_tasks(ImportTaskIds=[begun["ImportTaskId"]])[
        "ImportSnapshotTasks"
    ]
    detail = task["SnapshotTaskDetail"]
    assert (detail["Status"], detail["Format"]) == ("completed", "RAW")
    assert detail["DiskImageSize"] == len(DISK)
    (snapshot,) = ec2.describe_snapshots(SnapshotIds=[detail["SnapshotId"]])["Snapshots"]
    assert (snapshot["VolumeSize"], snapshot["Description"]) == (1, "mine")
    assert snapshot["Tags"] == [{"Key": "team", "Value": "ml"}]
    volume = ec2.create_volume(SnapshotId=detail["SnapshotId"], AvailabilityZone="us-east-1a")
    assert volume["Size"] == 1
    waiter = ec2.get_waiter("snapshot_imported")
    waiter.wait(ImportTaskIds=[begun["ImportTaskId"]])
    for wrong, code in (
        (disk(form="OVA"), "UnsupportedOperation"),
        (disk(key="none"), "InvalidParameter"),
        (disk(bucket="nobodys-bucket"), "InvalidParameterValue"),
    ):
        assert refused(ec2.import_snapshot, DiskContainer=wrong)[0] == code
    task_id = "import-snap-0123456789abcdef0"
    found, message = refused(ec2.describe_import_snapshot_tasks, ImportTaskIds=[task_id])
    assert (found, task_id in message) == ("InvalidParameterValue", True)


def import_task(ec2: Any, **container: Any) -> Any:
    """What the task of an imported snapshot tells when it is over."""
    begun = ec2.import_snapshot(DiskContainer=container)
    asked = {"ImportTaskIds": [begun["ImportTaskId"]]}
    return ec2.describe_import_snapshot_tasks(**asked)["ImportSnapshotTasks"][0][
        "SnapshotTaskDetail"
    ]


@pytest.fixture(scope="module")
def images(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The raw disk as other hypervisors have it, in the bucket."""
    if not shutil.which("qemu-img"):
        pytest.skip("qemu-img is not installed")
    folder = tmp_path_factory.mktemp("images")
    (folder / "raw").write_bytes(DISK)
    for name, options in (
        ("streamed.vmdk", ["-O", "vmdk", "-o", "subformat=streamOptimized"]),
        ("sparse.vmdk", ["-O", "vmdk"]),
        ("dynamic.vhd", ["-O", "vpc", "-o", "force_size"]),
        ("fixed.vhd", ["-O", "vpc", "-o", "subformat=fixed,force_size"]),
        ("disk.vhdx", ["-O", "vhdx"]),
    ):
        made = folder / name
        words = ["qemu-img", "convert", "-f", "raw", *options, folder / "raw", made]
        subprocess.run(words, check=True, capture_output=True)
        s3.put_object(Bucket=BUCKET, Key=name, Body=made.read_bytes())
    (folder / "machine.ovf").write_text("<Envelope/>")
    with tarfile.open(folder / "machine.ova", "w") as packed:
        for name in ("machine.ovf", "streamed.vmdk"):
            packed.add(folder / name, name)
    s3.put_object(Bucket=BUCKET, Key="machine.ova", Body=(folder / "machine.ova").read_bytes())


@pytest.mark.parametrize(
    ("key", "form"),
    [
        ("streamed.vmdk", "VMDK"),
        ("dynamic.vhd", "VHD"),
        ("fixed.vhd", "VHD"),
        ("disk.vhdx", "VHDX"),
    ],
)
def test_a_disk_of_another_hypervisor_becomes_a_snapshot_of_what_is_on_it(
    client: Callable[..., Any], folder: Path, ec2: Any, role: str, images: None, key: str, form: str
) -> None:
    detail = import_task(ec2, **disk(key, form))
    assert (detail["Status"], detail["Format"]) == ("completed", form)
    (kept,) = folder.rglob(f"{detail['SnapshotId']}*")
    assert kept.read_bytes().startswith(DISK)


@pytest.mark.parametrize(
    ("key", "form"), [("sparse.vmdk", "VMDK"), ("disk.raw", "VMDK"), ("disk.raw", "VHD")]
)
def test_a_disk_that_vm_import_does_not_take_ends_its_task(
    ec2: Any, role: str, images: None, key: str, form: str
) -> None:
    detail = import_task(ec2, **disk(key, form))
    wrong = f"ClientError: Disk validation failed [Unsupported {form} File Format]"
    assert (detail["Status"], detail["StatusMessage"]) == ("deleted", wrong)
    assert "SnapshotId" not in detail


def test_an_ova_is_imported_as_an_image(ec2: Any, role: str, images: None) -> None:
    for key, status in (("machine.ova", ("active", "completed", "deleted")), ("disk.raw", None)):
        begun = ec2.import_image(DiskContainers=[disk(key, "OVA")])
        tasks = {"ImportTaskIds": [begun["ImportTaskId"]]}
        (task,) = ec2.describe_import_image_tasks(**tasks)["ImportImageTasks"]
        if status:
            assert task["Status"] in status
            assert task["SnapshotDetails"][0]["Format"] == "VMDK"
            assert task["SnapshotDetails"][0]["SnapshotId"].startswith("snap-")
        else:
            wrong = "ClientError: Disk validation failed [OVF file not found]"
            assert (task["Status"], task["StatusMessage"]) == ("deleted", wrong)


def test_a_vmdk_that_names_another_file_of_this_machine_is_not_followed(
    ec2: Any, s3: Any, role: str, images: None, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not for a guest".ljust(1 << 20, b"\0"))
    descriptor = (
        f"# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\n"
        f'createType="monolithicFlat"\nRW 2048 FLAT "{secret}" 0\n'
    )
    header = struct.pack("<4sIIQQQQ", b"KDMV", 3, 0x30001, 0, 128, 1, 20)
    for body in (descriptor.encode(), header.ljust(512, b"\0") + descriptor.encode()):
        s3.put_object(Bucket=BUCKET, Key="names.vmdk", Body=body)
        detail = import_task(ec2, **disk("names.vmdk", "VMDK"))
        assert (detail["Status"], "SnapshotId" in detail) == ("deleted", False)


def test_a_machine_without_qemu_img_says_which_package_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(formats.NoProgramError, match="VHD needs qemu-img on this machine"):
        formats.to_raw("VHD", tmp_path / "disk.vhd", tmp_path / "raw")


def test_a_disk_without_a_file_system_ends_its_import_and_says_so(
    ec2: Any, s3: Any, role: str
) -> None:
    begun = ec2.import_image(DiskContainers=[disk()], Architecture="x86_64")
    assert begun["ImportTaskId"].startswith("import-ami-")
    for _ in range(3000):
        (task,) = ec2.describe_import_image_tasks(ImportTaskIds=[begun["ImportTaskId"]])[
            "ImportImageTasks"
        ]
        if task["Status"] != "active":
            break
        time.sleep(0.02)
    # Where there are no loop devices (or no root) the AMI cannot be made; where there are, EC2's
    # AMI of such a disk exists and does not boot.
    assert task["Status"] in ("completed", "deleted")


def test_a_stored_image_is_restored_after_it_is_gone(
    walk: Any, ec2: Any, s3: Any, refused: Any
) -> None:
    tags = [{"ResourceType": "image", "Tags": [{"Key": "team", "Value": "ml"}]}]
    instance = walk.launched()["InstanceId"]
    first = walk.baked(InstanceId=instance)
    image = walk.baked(InstanceId=instance, Description="kept", TagSpecifications=tags)
    label = [{"Key": "why", "Value": "archive"}]
    key = ec2.create_store_image_task(ImageId=image["ImageId"], Bucket=BUCKET, S3ObjectTags=label)[
        "ObjectKey"
    ]
    assert s3.get_object_tagging(Bucket=BUCKET, Key=key)["TagSet"] == label
    assert key == f"{image['ImageId']}.bin"
    (task,) = ec2.describe_store_image_tasks(ImageIds=[image["ImageId"]])["StoreImageTaskResults"]
    assert (task["StoreTaskState"], task["ProgressPercentage"]) == ("Completed", 100)
    for image_id in (image, first):
        ec2.deregister_image(ImageId=image_id["ImageId"], DeleteAssociatedSnapshots=True)
    walk.terminated(instance)
    made = ec2.create_restore_image_task(Bucket=BUCKET, ObjectKey=key, Name="again")["ImageId"]
    found = walk.image(made)
    assert (found["Name"], found["Description"], found["State"]) == ("again", "kept", "available")
    assert found["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert found["Architecture"] == image["Architecture"]
    assert walk.launched(ImageId=made)["ImageId"] == made
    again = refused(ec2.create_restore_image_task, Bucket=BUCKET, ObjectKey=key, Name="again")
    assert again[0] == "InvalidAMIName.Duplicate"
    other = refused(ec2.create_restore_image_task, Bucket=BUCKET, ObjectKey="disk.raw")
    assert other == (
        "InvalidParameterValue",
        "AMI Kiln lab: the object is not an AMI that the lab has stored",
    )


ID = "ami-0123456789abcdef0"


def crafted(tmp_path: Path, entry: dict[str, Any]) -> bytes:
    """An object that looks like a stored AMI with one volume besides its root."""
    disk = {"DeviceName": "/dev/sdf", "File": "volume-0", "Ebs": {"VolumeSize": 1}}
    (tmp_path / "kiln-image.json").write_text(
        json.dumps({"id": ID, "layers": [ID], "volumes": [disk]} | entry)
    )
    (tmp_path / ID / "layer").mkdir(parents=True, exist_ok=True)
    if not (tmp_path / ID / "volume-0").is_symlink():
        (tmp_path / ID / "volume-0").touch()
    with tarfile.open(tmp_path / "object.tar", "w") as archive:
        archive.add(tmp_path / "kiln-image.json", "kiln-image.json")
        archive.add(tmp_path / ID, ID)
    return (tmp_path / "object.tar").read_bytes()


@pytest.mark.parametrize("what", ["base", "layer", "file", "link", "no layers"])
def test_an_object_that_a_stranger_made_reaches_no_file_of_this_machine(
    what: str, ec2: Any, s3: Any, refused: Any, parent: str, walk: Any, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    (victim / "layer").mkdir(parents=True)
    outside = {"DeviceName": "/dev/sdf", "File": "../../etc/passwd", "Ebs": {"VolumeSize": 1}}
    changed: dict[str, Any] = {
        "base": {"base": str(victim)},
        "layer": {"layers": [str(victim), ID]},
        "file": {"volumes": [outside]},
        "no layers": {"layers": None},
    }.get(what, {})
    if what == "link":
        (tmp_path / ID).mkdir()
        (tmp_path / ID / "volume-0").symlink_to("/etc/passwd")
    stored = walk.baked(InstanceId=walk.launched()["InstanceId"])["ImageId"]
    key = ec2.create_store_image_task(ImageId=stored, Bucket=BUCKET)["ObjectKey"]
    (tmp_path / "real").write_bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    with tarfile.open(tmp_path / "real") as real:
        entry = json.loads(real.extractfile("kiln-image.json").read())  # type: ignore[union-attr]
    own = {name: entry[name] for name in entry if name not in ("id", "layers", "volumes")}
    s3.put_object(Bucket=BUCKET, Key="stranger", Body=crafted(tmp_path, own | changed))
    name = f"stranger's {what}"
    code, message = refused(
        ec2.create_restore_image_task, Bucket=BUCKET, ObjectKey="stranger", Name=name
    )
    assert (code, "AMI Kiln lab: " in message) == ("InvalidParameterValue", True)
    assert (victim / "layer").is_dir()
    named = [{"Name": "name", "Values": [name]}]
    assert ec2.describe_images(Owners=["self"], Filters=named)["Images"] == []


def test_only_ones_own_image_is_stored(ec2: Any, parent: str, s3: Any, refused: Any) -> None:
    assert refused(ec2.create_store_image_task, ImageId=parent, Bucket=BUCKET)[0] == "AuthFailure"
