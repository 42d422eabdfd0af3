"""A launch chooses the slices, by tag or user-data: one AMI, the lab's own IMDS, booted guests."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Guest, Launch, launching, wait_for

from kiln.base.paths import RUNTIME
from lab.daemon import control
from lab.vendors.standins.nvidia_smi import install
from tests.unit import commands

TYPE = "p4d.24xlarge"
IMAGES_OWN, BY_TAG, BY_USER_DATA = "all-balanced", "all-1g.5gb", "all-2g.10gb"
SLICES = {
    IMAGES_OWN: ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"],
    BY_TAG: ["1g.5gb"] * 7,
    BY_USER_DATA: ["2g.10gb"] * 3,
    "": [],
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
USER_DATA = f"#!/bin/sh\n# kiln:mig-config={BY_USER_DATA}\ntrue\n"
SEEN_TAGS = {"InstanceMetadataTags": "enabled"}


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


def started(launch: Launch, ami: str, tag: str = "", **more: Any) -> Guest:
    """An instance of the AMI whose unit has run."""
    if tag:
        tags = [{"Key": "kiln:mig-config", "Value": tag}]
        more["TagSpecifications"] = [{"ResourceType": "instance", "Tags": tags}]
    return ran(launch(ami, InstanceType=TYPE, **more))


@pytest.fixture
def start(launch: Launch, ami: str) -> Callable[..., Guest]:
    """Start an instance of the AMI for this test alone."""
    return partial(started, launch, ami)


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
    """Each GPU's instances as nvidia-smi lists them; [] also where MIG is off."""
    listed = guest.run("sudo nvidia-smi mig -lgi").stdout
    rows = [line.split() for line in listed.splitlines() if " MIG " in line]
    return [sorted(row[3] for row in rows if row[1] == str(n)) for n in range(8)]


def holds(guest: Guest, label: str) -> None:
    assert slices(guest) == [SLICES[label]] * 8, unit_log(guest)


@dataclass(frozen=True)
class Booted:
    """An instance, and what its first boot made: each GPU's slices, what the unit said."""

    guest: Guest
    slices: list[list[str]]
    said: str

    def again(self) -> str:
        """Run the unit once more, with what the instance is told now; what it says."""
        self.guest.run("sudo systemctl restart kiln-mig.service")
        return unit_log(self.guest)


def booted(guest: Guest) -> Booted:
    """The guest, when its first boot is over."""
    return Booted(ran(guest), slices(guest), unit_log(guest))


@pytest.fixture(scope="module")
def starts(ec2: Any, key: tuple[str, Path], ami: str) -> Iterator[Callable[..., Guest]]:
    """Start an instance of the AMI for several tests; `tag` is its kiln:mig-config."""
    with launching(ec2, key, ami) as launch:
        yield partial(started, launch, ami)


@pytest.fixture(scope="module")
def plain(starts: Callable[..., Guest]) -> Booted:
    """An instance that was launched without a word. IMDS does not show its tags."""
    return booted(starts())


@pytest.fixture(scope="module")
def chosen(starts: Callable[..., Guest]) -> Booted:
    """An instance with a layout by tag, and another one by user-data."""
    return booted(starts(BY_TAG, MetadataOptions=SEEN_TAGS, UserData=USER_DATA))


@pytest.fixture
def tag(ec2: Any, chosen: Booted) -> Iterator[Callable[[str], None]]:
    """Tags `chosen` with another layout; "" takes its tag away. It is BY_TAG after the test."""
    name = {"Key": "kiln:mig-config"}

    def change(label: str) -> None:
        if label:
            ec2.create_tags(Resources=[chosen.guest.id], Tags=[{**name, "Value": label}])
        else:
            ec2.delete_tags(Resources=[chosen.guest.id], Tags=[name])

    yield change
    change(BY_TAG)
    chosen.again()


def test_without_a_word_the_images_own_layout_is_made(plain: Booted) -> None:
    assert plain.slices == [SLICES[IMAGES_OWN]] * 8, plain.said
    assert f"layout {IMAGES_OWN} (MIG_CONFIG in /etc/default/gpu-mig)" in plain.said


def test_a_tag_chooses_other_slices_and_wins_over_user_data(chosen: Booted) -> None:
    assert chosen.slices == [SLICES[BY_TAG]] * 8, chosen.said
    assert f"layout {BY_TAG} (instance tag kiln:mig-config)" in chosen.said


def test_user_data_chooses_other_slices(chosen: Booted, tag: Callable[[str], None]) -> None:
    """At a first boot: as Karpenter gives it, below."""
    tag("")
    said = chosen.again()
    holds(chosen.guest, BY_USER_DATA)
    assert f"layout {BY_USER_DATA} (user-data)" in said


def test_a_tag_that_imds_may_not_show_is_not_seen_and_the_journal_says_so(
    plain: Booted, ec2: Any
) -> None:
    tags = [{"Key": "kiln:mig-config", "Value": BY_TAG}]
    ec2.create_tags(Resources=[plain.guest.id], Tags=tags)
    said = plain.again()
    ec2.delete_tags(Resources=[plain.guest.id], Tags=tags)
    holds(plain.guest, IMAGES_OWN)
    assert f"layout {IMAGES_OWN} (MIG_CONFIG in /etc/default/gpu-mig)" in said
    assert "no tag kiln:mig-config and no such line in user-data" in said


def test_with_imds_disabled_the_images_own_layout_is_made(plain: Booted, ec2: Any) -> None:
    tags = [{"Key": "kiln:mig-config", "Value": BY_TAG}]
    ec2.create_tags(Resources=[plain.guest.id], Tags=tags)
    options = {"InstanceId": plain.guest.id, **SEEN_TAGS}
    ec2.modify_instance_metadata_options(**options, HttpEndpoint="disabled")
    said = plain.again()
    ec2.modify_instance_metadata_options(
        **{**options, "InstanceMetadataTags": "disabled"}, HttpEndpoint="enabled"
    )
    ec2.delete_tags(Resources=[plain.guest.id], Tags=tags)
    holds(plain.guest, IMAGES_OWN)
    assert f"layout {IMAGES_OWN} (MIG_CONFIG in /etc/default/gpu-mig)" in said
    assert "IMDS refused a token (HTTP 403)" in said


def test_a_silent_imds_fails_the_unit_in_time(plain: Booted) -> None:
    guest = plain.guest
    nobody = "http://" + ".".join([*guest.address.split(".")[:2], "255", "254"])
    settings = "/etc/systemd/system/kiln-mig.service.d"
    guest.run(
        f"sudo mkdir -p {settings} && printf '[Service]\\n"
        f"Environment=AWS_EC2_METADATA_SERVICE_ENDPOINT={nobody}\\n' | "
        f"sudo tee {settings}/nobody.conf && sudo systemctl daemon-reload"
    )
    said = plain.again()
    state = unit(guest)
    times = guest.run(
        "systemctl show kiln-mig.service -pExecMainStartTimestampMonotonic "
        "-pExecMainExitTimestampMonotonic --value"
    ).stdout.split()
    gate = guest.run("sudo /usr/local/bin/kiln-gpu-gate 2>&1").stdout
    guest.run(f"sudo rm -r {settings} && sudo systemctl daemon-reload")
    assert state == "failed"
    assert "IMDS does not tell the launch's MIG layout" in said
    assert "IMDS" in gate
    # µs. One attempt to connect may last more than two minutes.
    assert int(times[1]) - int(times[0]) < 120e6


def assert_left_alone(guest: Guest, said: str) -> None:
    """The unit has failed by a label that is not there, and did nothing to GPUs without MIG."""
    assert unit(guest) == "failed"
    assert "no label 'all-1g.5bg' in the MIG configuration" in said
    assert "did you mean 'all-1g.5gb'?" in said
    assert "Traceback" not in said
    holds(guest, "")
    assert "Enabled" not in guest.run("nvidia-smi --query-gpu=mig.mode.pending --format=csv").stdout


def test_a_label_of_a_tag_that_is_not_there_fails_the_unit_and_leaves_the_gpus_alone(
    chosen: Booted, tag: Callable[[str], None]
) -> None:
    # What another host's GPUs are: as from the factory.
    chosen.guest.run("sudo rm -r /run/kiln-lab/nvidia-smi /var/lib/kiln-lab/nvidia-smi")
    tag("all-1g.5bg")
    assert_left_alone(chosen.guest, chosen.again())


def test_a_label_of_user_data_that_is_not_there_fails_the_unit_and_leaves_the_gpus_alone(
    start: Callable[..., Guest],
) -> None:
    guest = start(UserData="#cloud-config\n# kiln:mig-config=all-1g.5bg\n")
    assert_left_alone(guest, unit_log(guest))


LINE, EKS = "al2/al2_last/base/x86_64", "al2023/lts/eks/x86_64"


@pytest.fixture(scope="module")
def channel(ami: str, client: Any) -> Iterator[None]:
    """The line's channel holds the AMI."""
    name = f"/ami-kiln/{LINE}/stable/image_id"
    client("ssm").put_parameter(Name=name, Value=ami, Type="String", DataType="aws:ec2:image")
    yield
    client("ssm").delete_parameter(Name=name)


@pytest.fixture(scope="module")
def network(ec2: Any) -> dict[str, str]:
    """The default subnet and security group, as the documents call them."""
    subnet = ec2.describe_subnets()["Subnets"][0]
    of_vpc = [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}]
    group = ec2.describe_security_groups(Filters=of_vpc)["SecurityGroups"][0]["GroupId"]
    return {"SUBNET": subnet["SubnetId"], "GROUP": group}


def document(kind: str, label: str, line: str = LINE) -> str:
    """What `consume` writes."""
    flags = ["--line", line, "--for", kind, "--label", label, "--instance-type", TYPE]
    done = commands.invoke("consume", *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def applied(ec2: Any, key: tuple[str, Path]) -> Iterator[Callable[[str], Guest]]:
    """The guest of an instance, when its unit has run; it is gone after the test."""
    ids = []

    def wait(instance: str) -> Guest:
        ids.append(instance)
        guest = Guest(instance, wait_for(ec2, instance, "running"), "ec2-user", key[1])
        return ran(guest)

    yield wait
    ec2.terminate_instances(InstanceIds=ids)


def test_the_launch_template_of_consume_starts_the_channels_image_with_its_layout(
    channel: None, network: dict[str, str], ec2: Any, applied: Callable[[str], Guest]
) -> None:
    template = json.loads(document("launch-template-json", BY_TAG))
    for card in template["LaunchTemplateData"]["NetworkInterfaces"]:
        card["Groups"] = [network["GROUP"]]
    ec2.create_launch_template(**template)
    name = {"LaunchTemplateName": template["LaunchTemplateName"]}
    started = ec2.run_instances(LaunchTemplate=name, MinCount=1, MaxCount=1)["Instances"][0]
    ec2.delete_launch_template(**name)
    holds(applied(started["InstanceId"]), BY_TAG)


def test_the_command_of_consume_starts_the_layout(
    channel: None,
    network: dict[str, str],
    lab: Any,
    key: tuple[str, Path],
    applied: Callable[[str], Guest],
) -> None:
    if not shutil.which("aws"):
        pytest.skip("needs the AWS CLI on PATH")
    done = subprocess.run(
        ["bash"], input=document("cli", BY_TAG), capture_output=True, text=True, check=False,
        env={**os.environ, **control.environment(lab), **network, "KEY": key[0]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    holds(applied(json.loads(done.stdout)["Instances"][0]["InstanceId"]), BY_TAG)


def test_the_user_data_of_a_karpenter_node_starts_the_layout(start: Callable[..., Guest]) -> None:
    """As Karpenter makes it of the node class: it shows no tags in IMDS."""
    (nodes, _) = yaml.safe_load_all(document("karpenter", BY_USER_DATA, EKS))
    own = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n"
    message = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="//"\n\n' + "".join(
        f"--//\nContent-Type: application/node.eks.aws\n\n{text}\n"
        for text in (nodes["spec"]["userData"], own)
    )
    guest = start(
        **{"tag": nodes["spec"]["tags"]["kiln:mig-config"]}, UserData=f"{message}--//--\n"
    )
    holds(guest, BY_USER_DATA)
    assert f"layout {BY_USER_DATA} (user-data)" in unit_log(guest)


def test_a_tag_changed_to_a_bad_one_leaves_the_slices_that_are_there(
    chosen: Booted, tag: Callable[[str], None]
) -> None:
    guest = chosen.guest
    holds(guest, BY_TAG)
    tag("nonsense")
    chosen.again()
    assert unit(guest) == "failed"
    holds(guest, BY_TAG)
    tag(BY_USER_DATA)
    chosen.again()
    assert unit(guest) == "active"
    holds(guest, BY_USER_DATA)
    answer = json.loads(guest.run("sudo /usr/local/bin/gpu-mig verify --json").stdout)
    assert answer["ok"] is True
