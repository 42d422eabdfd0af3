"""Second disks: an instance partitions, formats and mounts its volumes, and AMIs are made of them.

One guest writes a small root file system on a volume; a second one boots from it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from conftest import launching

# What the second guest's boot does not need, so that it need not be copied twice.
NOT_COPIED = (
    "usr/include usr/src usr/lib/gcc usr/lib/udev usr/share/doc usr/share/locale usr/share/man "
    "usr/share/perl usr/share/i18n usr/lib/x86_64-linux-gnu/perl usr/lib/x86_64-linux-gnu/gconv "
    "usr/lib/x86_64-linux-gnu/*.a usr/bin/*lto-dump* var/cache var/lib/apt var/lib/cloud/instances "
    "etc/ssh/ssh_host*"
)
BAKE = f"""set -e
printf 'label: gpt\\n,64M,U\\n,,L\\n' | sudo sfdisk -q /dev/nvme1n1
sudo mkfs.ext4 -q /dev/nvme1n1p2
sudo mount -o noatime /dev/nvme1n1p2 /mnt
cd /
set -f
sudo tar -c --one-file-system $(printf -- '--exclude=./%s ' {NOT_COPIED}) . | sudo tar -x -C /mnt
sudo sh -c 'echo on a second disk > /mnt/opt/made'
findmnt -no SOURCE,FSTYPE /mnt
sudo umount /mnt
"""


def volume(gib: int = 1) -> dict[str, Any]:
    return {"VolumeSize": gib, "VolumeType": "gp3", "DeleteOnTermination": True}


@pytest.fixture(scope="module")
def builder(ec2: Any, client: Any, key: Any, lab: Any) -> Iterator[SimpleNamespace]:
    """A guest that has made a root file system on /dev/xvdf, and the snapshot of that volume."""
    name = "/aws/service/debian/release/12/latest/amd64"
    parent = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    with launching(ec2, key, parent) as launch:
        devices = [{"DeviceName": "/dev/xvdf", "Ebs": volume(3)}]
        guest = launch(user="admin", InstanceType="m5.large", BlockDeviceMappings=devices)
        done = guest.run(BAKE)
        assert done.returncode == 0, done.stderr
        snapshot = ec2.create_snapshot(VolumeId=volume_at(ec2, guest.id, "/dev/xvdf"))
        yield SimpleNamespace(
            guest=guest, baked=done.stdout, snapshot=snapshot["SnapshotId"], launch=launch
        )


def volume_at(ec2: Any, instance: str, device: str) -> str:
    found = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    at = {disk["DeviceName"]: disk["Ebs"]["VolumeId"] for disk in found["BlockDeviceMappings"]}
    return str(at[device])


def available(ec2: Any, image: str) -> Any:
    for _ in range(600):
        found = ec2.describe_images(ImageIds=[image])["Images"][0]
        if found["State"] != "pending":
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def test_a_volume_is_partitioned_formatted_and_mounted(builder: SimpleNamespace) -> None:
    assert builder.baked.split() == ["/dev/nvme1n1p2", "ext4"]


def test_a_volume_that_comes_and_goes_keeps_its_files(
    ec2: Any, lab: Any, builder: SimpleNamespace
) -> None:
    guest = builder.guest
    made = ec2.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    ec2.attach_volume(VolumeId=made, InstanceId=guest.id, Device="/dev/xvdg")
    disk = "/dev/nvme2n1"
    written = guest.run(
        f"sudo mkfs.ext4 -q {disk} && sudo mount {disk} /mnt && sudo touch /mnt/kept && "
        "sudo umount /mnt"
    )
    assert written.returncode == 0, written.stderr
    ec2.detach_volume(VolumeId=made)
    assert guest.run(f"ls {disk}").returncode != 0
    snapshot = ec2.create_snapshot(VolumeId=made)["SnapshotId"]
    file = lab.state / "volumes" / made
    assert file.exists()
    ec2.delete_volume(VolumeId=made)
    assert not file.exists()
    again = ec2.create_volume(SnapshotId=snapshot, AvailabilityZone="us-east-1a")["VolumeId"]
    ec2.attach_volume(VolumeId=again, InstanceId=guest.id, Device="/dev/xvdg")
    assert "kept" in guest.run(f"sudo mount -r {disk} /mnt; ls /mnt; sudo umount /mnt").stdout
    ec2.detach_volume(VolumeId=again)


def test_an_image_keeps_what_is_on_the_second_disk(ec2: Any, builder: SimpleNamespace) -> None:
    made = ec2.create_image(InstanceId=builder.guest.id, Name="with-a-disk", NoReboot=True)
    image = available(ec2, made["ImageId"])
    (ebs,) = [
        disk["Ebs"] for disk in image["BlockDeviceMappings"] if disk["DeviceName"] == "/dev/xvdf"
    ]
    # The snapshot outlives the AMI.
    ec2.deregister_image(ImageId=made["ImageId"])
    copy = ec2.create_volume(SnapshotId=ebs["SnapshotId"], AvailabilityZone="us-east-1a")
    ec2.attach_volume(VolumeId=copy["VolumeId"], InstanceId=builder.guest.id, Device="/dev/xvdh")
    read = builder.guest.run(
        "sudo mount -r /dev/nvme2n1p2 /mnt && cat /mnt/opt/made; sudo umount /mnt"
    )
    assert read.stdout == "on a second disk\n", read.stderr
    ec2.detach_volume(VolumeId=copy["VolumeId"])


@pytest.mark.parametrize(
    "command",
    [
        # The host's own disks, and options that make the kernel open one.
        "sudo mknod /tmp/vda b 254 0",
        "sudo mount -t ext4 /dev/loop0 /mnt",
        "sudo mount -o journal_path=/dev/vda /dev/nvme1n1p2 /mnt",
        # Who is not root.
        "mount /dev/nvme1n1p2 /mnt",
        "unshare -rm mount /dev/nvme1n1p2 /mnt",
    ],
)
def test_a_guest_mounts_nothing_but_its_own_volumes(builder: SimpleNamespace, command: str) -> None:
    refused = builder.guest.run(command)
    assert refused.returncode != 0
    assert builder.guest.run("findmnt /mnt").returncode != 0


def test_devices_on_a_volume_stay_closed(builder: SimpleNamespace) -> None:
    """A file system can be written with any node on it: debugfs makes that of the host's memory."""
    made = builder.guest.run(
        "sudo debugfs -w -R 'mknod host c 1 1' /dev/nvme1n1p2 && sudo mount /dev/nvme1n1p2 /mnt && "
        "sudo chmod 666 /mnt/host && sudo head -c1 /mnt/host; echo $?; sudo umount /mnt"
    )
    assert made.stdout.split()[-1] == "1", made.stdout + made.stderr
    assert "Permission denied" in made.stderr


def test_a_root_volume_is_refused_as_a_second_disk(ec2: Any, builder: SimpleNamespace) -> None:
    own = volume_at(ec2, builder.guest.id, "/dev/xvda")
    root = ec2.create_snapshot(VolumeId=own)["SnapshotId"]
    copy = ec2.create_volume(SnapshotId=root, AvailabilityZone="us-east-1a")["VolumeId"]
    with pytest.raises(ClientError, match=r"UnsupportedOperation.*is a folder here"):
        ec2.attach_volume(VolumeId=copy, InstanceId=builder.guest.id, Device="/dev/xvdi")


def test_no_loop_device_stays_when_the_guest_is_gone(ec2: Any, builder: SimpleNamespace) -> None:
    """The last test of this file: it ends its guest."""
    own = volume_at(ec2, builder.guest.id, "/dev/xvdf")
    assert own in loop_devices()
    ec2.terminate_instances(InstanceIds=[builder.guest.id])
    for _ in range(600):
        if own not in loop_devices():
            return
        time.sleep(0.1)
    raise AssertionError(loop_devices())


def loop_devices() -> str:
    return subprocess.run(["losetup", "-l"], capture_output=True, text=True, check=True).stdout
