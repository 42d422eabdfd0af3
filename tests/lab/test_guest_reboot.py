"""A foreign Packer template reboots its instance and goes on at once, as on EC2."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from kiln.packer.program import Packer
from lab.daemon import control

TEMPLATE = Path(__file__).parent / "foreign" / "reboot.pkr.hcl"


def bake(
    packer: Packer, lab: Any, home: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Build the template with nothing in the environment but what `lab.up` prints."""
    given = [word for name, value in variables.items() for word in ("-var", f"{name}={value}")]
    return subprocess.run(
        [
            *(str(packer.path), "build", "-var", f"endpoint={lab.endpoint}"),
            *(*given, str(TEMPLATE)),
        ],
        env={
            **control.environment(lab),
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "AWS_POLL_DELAY_SECONDS": "1",
            # Where a newer Packer finds its plugin, if this test run has one.
            **{n: os.environ[n] for n in ("PACKER_PLUGIN_PATH",) if n in os.environ},
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_step_after_a_reboot_runs_on_the_rebooted_machine(
    lab, client, packer: Packer, tmp_path: Path
):
    name = "/aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2"
    found = client("ssm").get_parameter(Name=name)
    done = bake(
        packer,
        lab,
        tmp_path,
        source_ami=found["Parameter"]["Value"],
        user="ec2-user",
        name="reboots",
        ssh_interface="private_ip",
    )
    assert done.returncode == 0, done.stdout
    assert "third boot of ip-10-" in done.stdout
    _is_as_asked(client("ec2"), "reboots")


def _is_as_asked(ec2: Any, name: str) -> None:
    """What the template says of its AMI besides is on it, and nothing of it was lost."""
    (image,) = ec2.describe_images(Filters=[{"Name": "name", "Values": [name]}])["Images"]
    assert (image["Description"], image["EnaSupport"]) == ("rebooted twice", True)
    disks = {disk["DeviceName"]: disk["Ebs"] for disk in image["BlockDeviceMappings"]}
    friend = [{"UserId": "210987654321"}]
    ask = {"ImageId": image["ImageId"], "Attribute": "launchPermission"}
    assert ec2.describe_image_attribute(**ask)["LaunchPermissions"] == friend
    for disk in disks.values():
        shared = ec2.describe_snapshot_attribute(
            SnapshotId=disk["SnapshotId"], Attribute="createVolumePermission"
        )
        assert shared["CreateVolumePermissions"] == friend
    ec2.deregister_image(ImageId=image["ImageId"], DeleteAssociatedSnapshots=True)
