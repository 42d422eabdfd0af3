"""A launch chooses the slices, by tag or user-data: one AMI, the lab's own IMDS, booted guests."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Guest, Launch, wait_for

from kiln.base.paths import RUNTIME
from lab.vendors.standins.nvidia_smi import install
from tests.unit import commands

TYPE = "p4d.24xlarge"
IMAGES_OWN, BY_TAG, BY_USER_DATA = "all-balanced", "all-1g.5gb", "all-2g.10gb"
SLICES = {
    IMAGES_OWN: ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"],
    BY_TAG: ["1g.5gb"] * 7,
    BY_USER_DATA: ["2g.10gb"] * 3,
}
SHIPPED = (
    "opt/kiln/lib/gpu_boot",
    "opt/kiln/lib/gpu_common",
    "opt/kiln/lib/gpu_mig",
    "usr/local/bin/gpu-mig",
    "usr/local/bin/kiln-gpu-gate",
    "etc/kiln/mig-config.json",
    "etc/systemd/system/kiln-mig.service",
)


def archive() -> bytes:
    """What the AMI has more than its base: gpu-mig, and the lab's driver."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:

        def add(path: str, content: bytes, mode: int = 0o644) -> None:
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))

        for path, file in install.payload().items():
            add(path, file.content, file.mode)
        for name in SHIPPED:
            top = RUNTIME / name
            for source in sorted(top.rglob("*.*") if top.is_dir() else [top]):
                if "__pycache__" not in source.parts:
                    mode = 0o755 if name.startswith("usr") else 0o644
                    add(str(source.relative_to(RUNTIME)), source.read_bytes(), mode)
        add("etc/default/gpu-mig", f"MIG_CONFIG={IMAGES_OWN}\n".encode())
        # What kiln-gpu-boot says of this machine.
        decided = json.dumps({"gpus": [{}] * 8, "apply": {"nvswitch": False}})
        folder = "/run/kiln/gpu-boot"
        lines = (f"d {folder}", f"f {folder}/gpu", f"f {folder}/decision.json - - - - {decided}")
        add("etc/tmpfiles.d/gpu.conf", "".join(f"{line}\n" for line in lines).encode())
        add("var/lib/kiln-lab/driver.json", b'{"version": "580.105.08", "cuda": "13.0"}')
    return out.getvalue()


@pytest.fixture(scope="module")
def ami(ec2: Any, key: tuple[str, Path], source_ami: str) -> Iterator[str]:
    """An AMI whose own choice is all-balanced."""
    made = ec2.run_instances(
        ImageId=source_ami, MinCount=1, MaxCount=1, KeyName=key[0], InstanceType=TYPE
    )
    instance = made["Instances"][0]["InstanceId"]
    guest = Guest(instance, wait_for(ec2, instance, "running"), "ec2-user", key[1])
    guest.run("true")  # which waits for its sshd
    packed = subprocess.run(
        ["ssh", "-i", str(key[1]), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
         "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
         f"ec2-user@{guest.address}",
         "sudo tar -C / --no-same-owner --no-overwrite-dir -xzf - && "
         "sudo systemctl enable kiln-mig.service && sync"],
        input=archive(), capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert packed.returncode == 0, packed.stderr.decode()
    ec2.stop_instances(InstanceIds=[instance])
    wait_for(ec2, instance, "stopped")
    image = ec2.create_image(InstanceId=instance, Name=f"mig-{time.time()}")["ImageId"]
    ec2.get_waiter("image_available").wait(
        ImageIds=[image], WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    ec2.terminate_instances(InstanceIds=[instance])
    yield str(image)
    ec2.deregister_image(ImageId=image)


def ran(guest: Guest) -> Guest:
    """The guest, when its unit has run."""
    deadline = time.monotonic() + 120
    while unit(guest) not in ("active", "failed"):
        assert time.monotonic() < deadline, unit_log(guest)
        time.sleep(0.2)
    return guest


def unit(guest: Guest) -> str:
    return guest.run("systemctl is-active kiln-mig.service").stdout.strip()


def unit_log(guest: Guest) -> str:
    """What the unit has said in its last run."""
    run = "$(systemctl show kiln-mig.service -p InvocationID --value)"
    said = guest.run(f"sudo journalctl --sync; sudo journalctl -o cat _SYSTEMD_INVOCATION_ID={run}")
    return said.stdout


def slices(guest: Guest) -> list[list[str]]:
    """Each GPU's instances as nvidia-smi lists them."""
    listed = guest.run("sudo nvidia-smi mig -lgi").stdout
    rows = [line.split() for line in listed.splitlines() if " MIG " in line]
    return [sorted(row[3] for row in rows if row[1] == str(n)) for n in range(8)]


def holds(guest: Guest, label: str) -> None:
    assert slices(guest) == [SLICES[label]] * 8, unit_log(guest)


def again(guest: Guest) -> str:
    """Run the unit once more, with what the instance is told now; what it says."""
    guest.run("sudo systemctl restart kiln-mig.service")
    return unit_log(guest)


def test_launch_without_a_word_gets_the_images_layout(launch: Launch, ami: str, ec2: Any) -> None:
    guest = ran(launch(ami, InstanceType=TYPE))
    holds(guest, IMAGES_OWN)
    assert f"layout {IMAGES_OWN} (MIG_CONFIG in /etc/default/gpu-mig)" in unit_log(guest)
    # A tag that IMDS may not show is not seen.
    tags = [{"Key": "kiln:mig-config", "Value": BY_TAG}]
    ec2.create_tags(Resources=[guest.id], Tags=tags)
    assert "no tag kiln:mig-config and no such line in user-data" in again(guest)
    holds(guest, IMAGES_OWN)
    # A silent IMDS fails the unit in time.
    nobody = "http://" + ".".join([*guest.address.split(".")[:2], "255", "254"])
    settings = "/etc/systemd/system/kiln-mig.service.d"
    guest.run(
        f"sudo mkdir -p {settings} && printf '[Service]\\n"
        f"Environment=AWS_EC2_METADATA_SERVICE_ENDPOINT={nobody}\\n' | "
        f"sudo tee {settings}/nobody.conf && sudo systemctl daemon-reload"
    )
    assert "IMDS does not tell the launch's MIG layout" in again(guest)
    assert unit(guest) == "failed"
    times = guest.run(
        "systemctl show kiln-mig.service -pExecMainStartTimestampMonotonic "
        "-pExecMainExitTimestampMonotonic --value"
    ).stdout.split()
    # µs. One attempt to connect may last more than two minutes.
    assert int(times[1]) - int(times[0]) < 120e6
    assert "IMDS" in guest.run("sudo /usr/local/bin/kiln-gpu-gate 2>&1").stdout


@pytest.mark.all
def test_tag_wins_over_user_data_and_a_bad_one_changes_nothing(
    launch: Launch, ami: str, ec2: Any
) -> None:
    name = {"Key": "kiln:mig-config"}
    guest = ran(
        launch(
            ami,
            InstanceType=TYPE,
            MetadataOptions={"InstanceMetadataTags": "enabled"},
            UserData=f"#!/bin/sh\n# kiln:mig-config={BY_USER_DATA}\ntrue\n",
            TagSpecifications=[{"ResourceType": "instance", "Tags": [{**name, "Value": BY_TAG}]}],
        )
    )
    holds(guest, BY_TAG)
    assert f"layout {BY_TAG} (instance tag kiln:mig-config)" in unit_log(guest)
    ec2.create_tags(Resources=[guest.id], Tags=[{**name, "Value": "all-1g.5bg"}])
    assert "did you mean 'all-1g.5gb'?" in again(guest)
    assert unit(guest) == "failed"
    holds(guest, BY_TAG)
    ec2.delete_tags(Resources=[guest.id], Tags=[name])
    assert f"layout {BY_USER_DATA} (user-data)" in again(guest)
    assert unit(guest) == "active"
    holds(guest, BY_USER_DATA)


LINE = "al2/al2_last/base/x86_64"


@pytest.fixture(scope="module")
def channel(ami: str, client: Any) -> Iterator[None]:
    """The line's channel holds the AMI."""
    name = f"/ami-kiln/{LINE}/stable/image_id"
    client("ssm").put_parameter(Name=name, Value=ami, Type="String", DataType="aws:ec2:image")
    yield
    client("ssm").delete_parameter(Name=name)


def test_launch_template_of_consume_starts_the_channels_image(
    channel: None, ec2: Any, key: tuple[str, Path]
) -> None:
    flags = ["--line", LINE, "--for", "launch-template-json", "--label", BY_TAG]
    done = commands.invoke("consume", *flags, "--instance-type", TYPE)
    assert done.returncode == 0, done.stderr
    template = json.loads(done.stdout)
    subnet = ec2.describe_subnets()["Subnets"][0]
    of_vpc = [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}]
    group = ec2.describe_security_groups(Filters=of_vpc)["SecurityGroups"][0]["GroupId"]
    for card in template["LaunchTemplateData"]["NetworkInterfaces"]:
        card["Groups"] = [group]
    ec2.create_launch_template(**template)
    name = {"LaunchTemplateName": template["LaunchTemplateName"]}
    started = ec2.run_instances(LaunchTemplate=name, MinCount=1, MaxCount=1)["Instances"][0]
    ec2.delete_launch_template(**name)
    instance = started["InstanceId"]
    try:
        address = wait_for(ec2, instance, "running")
        holds(ran(Guest(instance, address, "ec2-user", key[1])), BY_TAG)
    finally:
        ec2.terminate_instances(InstanceIds=[instance])
