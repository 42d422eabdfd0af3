"""The lab is an EC2 to any client: plain boto3, instances that boot, images that hold."""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
import subprocess
import time

import pytest
from botocore.exceptions import ClientError
from conftest import Guest, launching, wait_for

from lab.daemon import control
from lab.machine import bridge, cgroups, disks


def state(ec2, instance_id):
    found = ec2.describe_instances(InstanceIds=[instance_id])
    return found["Reservations"][0]["Instances"][0]["State"]["Name"]


def wait_until_impaired(ec2, instance_id):
    for _ in range(600):
        status = ec2.describe_instance_status(InstanceIds=[instance_id])["InstanceStatuses"][0]
        if status["InstanceStatus"]["Status"] == "impaired":
            return
        assert status["InstanceStatus"]["Status"] == "initializing"
        time.sleep(0.1)
    raise AssertionError(f"{instance_id} is not impaired")


def test_an_instance_is_pending_then_runs_and_later_its_sshd_answers(ec2, first):
    answer, guest = first
    assert answer["State"]["Name"] == "pending"
    wait_for(ec2, guest.id, "running")
    assert guest.run("true").returncode == 0


TAGS = [{"ResourceType": "instance", "Tags": [{"Key": "kiln:mig-config", "Value": "all-1g"}]}]


@pytest.fixture(scope="module")
def pair(ec2, key, source_ami):
    """Two instances for the tests that only look: one with all that a launch can ask for, and a
    plain one with the same tags."""
    with launching(ec2, key, source_ami) as launch:
        yield (
            launch(
                InstanceType="p4d.24xlarge",
                MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
                TagSpecifications=TAGS,
                UserData="#!/bin/sh\necho baked-by-user-data > /var/tmp/said\n",
            ),
            launch(TagSpecifications=TAGS),
        )


TOKEN = (
    "curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "
    "http://169.254.169.254/latest/api/token"
)


def test_the_launch_key_opens_the_images_own_user_who_may_become_root(pair):
    _, guest = pair
    assert guest.run("id -un && sudo -n id -un").stdout.split() == ["ec2-user", "root"]


def test_imdsv2_tells_an_instance_who_it_is_and_refuses_without_a_token(pair):
    guest, _ = pair
    answer = guest.run(
        "cd /tmp; u=http://169.254.169.254/latest;"
        "curl -s -o /dev/null -w '%{http_code}\n' $u/meta-data/instance-id;"
        f"t=$({TOKEN});"
        "for p in meta-data/instance-id meta-data/instance-type meta-data/placement/region;"
        'do curl -s -H "X-aws-ec2-metadata-token: $t" $u/$p; echo; done'
    )
    assert answer.stdout.split() == ["401", guest.id, "p4d.24xlarge", "us-east-1"]


def test_another_instances_token_is_not_accepted(pair):
    first, other = pair
    token = first.run(TOKEN).stdout
    answer = other.run(
        f"curl -s -o /dev/null -w '%{{http_code}}' -H 'X-aws-ec2-metadata-token: {token}' "
        "http://169.254.169.254/latest/meta-data/instance-id"
    )
    assert answer.stdout == "401"


def test_user_data_runs_through_real_cloud_init(pair):
    guest, _ = pair
    deadline = time.monotonic() + 120
    content = ""
    while time.monotonic() < deadline and not content:
        content = guest.run("cat /var/tmp/said 2>/dev/null").stdout.strip()
    assert content == "baked-by-user-data"


def test_instance_tags_reach_the_guest_only_when_asked_for(pair):
    asked, silent = pair
    url = "http://169.254.169.254/latest/meta-data/tags/instance"
    with_token = f'-H "X-aws-ec2-metadata-token: $({TOKEN})"'
    assert asked.run(f"curl -s {with_token} {url}/kiln:mig-config").stdout == "all-1g"
    assert silent.run(f"curl -s -o /dev/null -w '%{{http_code}}' {url}").stdout == "404"


def test_imds_shows_the_interface_as_ec2_does(ec2, pair):
    _, guest = pair
    (found,) = ec2.describe_instances(InstanceIds=[guest.id])["Reservations"][0]["Instances"]
    nic = found["NetworkInterfaces"][0]
    below = f"network/interfaces/macs/{nic['MacAddress']}"
    url = f"http://169.254.169.254/latest/meta-data/{below}"
    answer = guest.run(
        f"for p in '' interface-id local-ipv4s security-group-ids subnet-id vpc-id "
        f"ipv4-associations/{found['PublicIpAddress']} subnet-ipv4-cidr-block; "
        f"do curl -sf {url}/$p; echo; done"
    ).stdout.split()
    assert {"device-number", "mac", "public-ipv4s", "ipv4-associations/"} < set(answer)
    groups = [group["GroupId"] for group in found["SecurityGroups"]]
    assert answer[-7:-1] == [
        *(nic["NetworkInterfaceId"], guest.address, *groups),
        *(found["SubnetId"], found["VpcId"], guest.address),
    ]
    assert ipaddress.ip_address(guest.address) in ipaddress.ip_network(answer[-1])


def test_guests_do_not_reach_each_other(pair):
    first, other = pair
    answer = first.run(
        f"timeout 2 bash -c '</dev/tcp/{other.address}/22' && echo open || echo closed"
    )
    assert answer.stdout.strip() == "closed"


@pytest.fixture(scope="module")
def first(ec2, key, source_ami):
    """What EC2 answered to a launch, and the instance when it runs."""
    made = ec2.run_instances(
        ImageId=source_ami, MinCount=1, MaxCount=1, KeyName=key[0], InstanceType="g4dn.xlarge"
    )["Instances"][0]
    address = wait_for(ec2, made["InstanceId"], "running")
    yield made, Guest(made["InstanceId"], address, "ec2-user", key[1])
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    wait_for(ec2, made["InstanceId"], "terminated")


@pytest.fixture(scope="module")
def lasting(first):
    """The same instance: it runs before and after each test. With a file on its disk."""
    _, guest = first
    guest.run("echo kept | sudo tee /opt/kept; sync")
    return guest


def test_an_image_holds_what_its_instance_had_on_disk_and_the_instance_starts_again_with_it(
    ec2, launch, lasting
):
    guest = lasting
    ec2.stop_instances(InstanceIds=[guest.id])
    wait_for(ec2, guest.id, "stopped")
    name = f"kept-{time.time()}"
    image = ec2.create_image(InstanceId=guest.id, Name=name)["ImageId"]
    ec2.get_waiter("image_available").wait(
        ImageIds=[image], WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    fresh = launch(image)
    assert fresh.run("cat /opt/kept").stdout == "kept\n"
    with pytest.raises(ClientError, match=r"InvalidAMIName\.Duplicate"):
        ec2.create_image(InstanceId=guest.id, Name=name)
    ec2.start_instances(InstanceIds=[guest.id])
    wait_for(ec2, guest.id, "running")
    assert guest.run("cat /opt/kept").stdout == "kept\n"
    public = ec2.describe_instances(InstanceIds=[guest.id])["Reservations"][0]["Instances"][0][
        "PublicIpAddress"
    ]
    assert public != guest.address, "EC2 gives another one"
    reached = dataclasses.replace(guest, address=public)
    command = "curl -sf http://169.254.169.254/latest/meta-data/public-ipv4"
    assert reached.run(command).stdout == public


def test_a_reboot_brings_the_same_machine_back(ec2, lasting):
    guest = lasting
    before = guest.run("cat /proc/sys/kernel/random/boot_id").stdout
    ec2.reboot_instances(InstanceIds=[guest.id])
    deadline = time.monotonic() + 120
    after = before
    while time.monotonic() < deadline and after in (before, ""):
        after = guest.run("cat /proc/sys/kernel/random/boot_id").stdout
        time.sleep(0.2)
    assert after not in (before, "")
    assert state(ec2, guest.id) == "running"


def test_a_shutdown_inside_stops_or_terminates_as_was_asked(ec2, launch):
    for behavior, end in (("stop", "stopped"), ("terminate", "terminated")):
        guest = launch(InstanceInitiatedShutdownBehavior=behavior)
        guest.run("sudo systemctl poweroff --force")
        wait_for(ec2, guest.id, end)


def test_an_ami_that_does_not_exist_is_refused_as_ec2_does(ec2, key):
    with pytest.raises(ClientError, match=r"InvalidAMIID\.NotFound"):
        ec2.run_instances(ImageId="ami-0123456789abcdef0", MinCount=1, MaxCount=1, KeyName=key[0])


def test_no_capacity_can_be_ordered(lab, ec2, source_ami, key):
    control.order_fault(
        lab,
        action="RunInstances",
        code="InsufficientInstanceCapacity",
        match={"InstanceType": "p5.48xlarge"},
        times=10,
    )
    with pytest.raises(ClientError, match=r"do not have sufficient p5\.48xlarge capacity"):
        ec2.run_instances(
            ImageId=source_ami, MinCount=1, MaxCount=1, InstanceType="p5.48xlarge", KeyName=key[0]
        )


def test_a_throttled_call_goes_through_when_the_client_tries_again(lab, ec2):
    control.order_fault(lab, action="DescribeInstances", code="RequestLimitExceeded", times=1)
    assert "Reservations" in ec2.describe_instances()
    assert control.status(lab)["faults"] == []


def test_a_boot_that_never_comes_up_can_be_ordered(lab, ec2, launch):
    control.order_fault(lab, action="boot", code="never")
    guest = launch()
    with pytest.raises(OSError):
        socket.create_connection((guest.address, 22), timeout=2)
    wait_until_impaired(ec2, guest.id)


def test_an_instance_that_boots_slowly_runs_meanwhile_and_can_be_terminated(ec2, launch):
    """As on EC2, where *running* says nothing about the system that boots."""
    slow = launch(UserData="#cloud-boothook\n#!/bin/sh\nsleep 80\n")
    with pytest.raises(OSError):
        socket.create_connection((slow.address, 22), timeout=2)
    status = ec2.describe_instance_status(InstanceIds=[slow.id])["InstanceStatuses"][0]
    assert status["InstanceStatus"]["Status"] == "initializing"
    ec2.terminate_instances(InstanceIds=[slow.id])
    assert state(ec2, slow.id) in ("shutting-down", "terminated")
    wait_for(ec2, slow.id, "terminated", timeout=60)


def test_a_launch_with_a_key_that_the_account_does_not_have_ends_as_on_ec2(ec2, key, source_ami):
    disk = {"Encrypted": True, "KmsKeyId": "alias/nope"}
    made = ec2.run_instances(
        ImageId=source_ami,
        MinCount=1,
        MaxCount=1,
        KeyName=key[0],
        InstanceType="g4dn.xlarge",
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": disk}],
    )
    instance_id = made["Instances"][0]["InstanceId"]
    found = {"State": {"Name": "pending"}}
    deadline = time.monotonic() + 60
    while found["State"]["Name"] in ("pending", "shutting-down") and time.monotonic() < deadline:
        time.sleep(0.1)
        (reservation,) = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        (found,) = reservation["Instances"]
    assert found["State"]["Name"] == "terminated"
    assert found["StateReason"]["Message"] == "Client.InternalError: Client error on launch"


def test_an_instance_that_this_machine_cannot_start_is_terminated_with_ec2s_reason(
    lab, ec2, launch, source_ami, key
):
    control.order_fault(lab, action="boot", code="never")  # its address is all that is asked for
    before = launch()
    third, fourth = map(int, before.address.split(".")[2:])
    # Names of the next guests' network interfaces, taken: systemd-nspawn gives up.
    taken = [bridge.port(lab, f"{lab.prefix}.{third}.{fourth + n}") for n in range(1, 4)]
    for name in taken:
        subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    try:
        made = ec2.run_instances(
            ImageId=source_ami, MinCount=1, MaxCount=1, KeyName=key[0], InstanceType="g4dn.xlarge"
        )
        instance_id = made["Instances"][0]["InstanceId"]
        wait_for(ec2, instance_id, "terminated")
    finally:
        for name in taken:
            subprocess.run(["ip", "link", "delete", name], check=True)
    found = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    assert found["StateReason"]["Code"] == "Server.InternalError"
    assert disks.mounts(disks.folder(lab, instance_id)) == []
    assert cgroups.remaining(f"{lab.bridge}-{instance_id}") == []
    assert "File exists" in (disks.folder(lab, instance_id) / "console.log").read_text()


def test_an_image_without_an_init_runs_and_never_answers(ec2, launch, lasting):
    inits = "for file in sbin/init usr/lib/systemd/systemd; do sudo mv"
    lasting.run(f"{inits} /$file /$file.away; done")
    image = ec2.create_image(InstanceId=lasting.id, Name=f"no-init-{time.time()}", NoReboot=True)
    ec2.get_waiter("image_available").wait(
        ImageIds=[image["ImageId"]], WaiterConfig={"Delay": 1, "MaxAttempts": 60}
    )
    lasting.run(f"{inits} /$file.away /$file; done")
    broken = launch(image["ImageId"])
    wait_until_impaired(ec2, broken.id)
    assert state(ec2, broken.id) == "running"
    ec2.deregister_image(ImageId=image["ImageId"])


def test_an_image_is_made_of_an_instance_that_runs_on_when_no_reboot_is_asked_for(
    ec2, launch, lasting
):
    guest = lasting
    guest.run("sudo touch /root/was-here")
    started = guest.run("systemctl show -p UserspaceTimestampMonotonic --value").stdout
    # One after the other, before the first is available.
    images = [
        ec2.create_image(InstanceId=guest.id, Name=f"live-{time.time()}", NoReboot=True)["ImageId"]
        for _ in range(3)
    ]
    ec2.get_waiter("image_available").wait(
        ImageIds=images, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    assert guest.run("systemctl show -p UserspaceTimestampMonotonic --value").stdout == started
    copied = launch(images[-1])
    assert copied.run("sudo test -e /root/was-here").returncode == 0
    for image in images:
        ec2.deregister_image(ImageId=image)


def test_calls_that_moto_lacks_are_answered(ec2, lasting):
    image = ec2.create_image(InstanceId=lasting.id, Name=f"extra-{time.time()}", NoReboot=True)[
        "ImageId"
    ]
    ec2.enable_image_deprecation(ImageId=image, DeprecateAt="2030-01-01T00:00:00Z")
    ec2.modify_image_attribute(ImageId=image, ImdsSupport={"Value": "v2.0"})
    found = ec2.describe_images(ImageIds=[image])["Images"][0]
    assert found["DeprecationTime"].startswith("2030-01-01")
    assert found["ImdsSupport"] == "v2.0"
    ec2.enable_image_deregistration_protection(ImageId=image)
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        ec2.deregister_image(ImageId=image)
    ec2.disable_image_deregistration_protection(ImageId=image)
    ec2.deregister_image(ImageId=image)
