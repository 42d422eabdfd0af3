"""The lab is an EC2 to any client: plain boto3, instances that boot, images that hold."""

from __future__ import annotations

import dataclasses
import time

import pytest
from botocore.exceptions import ClientError
from conftest import Guest, launching, wait_for


def test_instance_runs_before_its_sshd_answers(ec2, first):
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


def test_launch_key_opens_the_images_sudo_user(pair):
    _, guest = pair
    assert guest.run("id -un && sudo -n id -un").stdout.split() == ["ec2-user", "root"]


def test_imdsv2_answers_only_with_a_token(pair):
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


def test_create_image_captures_the_disk(ec2, launch, lasting):
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
