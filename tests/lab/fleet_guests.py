"""Guests as a fleet: managed by Systems Manager, with a driver's programs and others' files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conftest import Guest

from lab.vendors.standins.nvidia_smi import install

_TRUST = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Principal": {"Service": "ec2.amazonaws.com"},
        "Action": "sts:AssumeRole",
    },
}
MANAGED = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
REPORTS = "arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy"
# What fetching the installer takes besides.
_FETCHES = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Action": "s3:GetObject",
        "Resource": "arn:aws:s3:::ami-kiln-fleet-*/telemetry/*",
    },
}
_DRIVER = '{"version": "580.95.05", "kernel_module": "open", "cuda": "13.0"}'
AGENT_ETC = "/opt/aws/amazon-cloudwatch-agent/etc"
# What an installation may change; the agent's own notes and generated files change by themselves.
_TREE = (
    "sudo find /etc /opt /usr/local /var/lib/kiln -type f -print0 2>/dev/null"
    " | sudo xargs -0 sha256sum | sort -k 2"
    " | grep -vE ' /etc/(ld.so.cache|resolv.conf|machine-id|mtab|hosts)$'"
    " | grep -vE ' /etc/(passwd|shadow|group|gshadow|subuid|subgid)-?$'"
    " | grep -vE ' /opt/aws/amazon-cloudwatch-agent/(logs|var)/| /opt/aws/.*[.]toml$'"
)


@contextmanager
def role(client: Callable[[str], Any], *policies: str) -> Iterator[str]:
    """The name of an instance profile whose role has these policies and may fetch installers."""
    iam, name = client("iam"), f"fleet-{time.time_ns()}"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(_TRUST))
    for policy in policies:
        iam.attach_role_policy(RoleName=name, PolicyArn=policy)
    iam.put_role_policy(RoleName=name, PolicyName="s3", PolicyDocument=json.dumps(_FETCHES))
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    yield name
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    iam.delete_instance_profile(InstanceProfileName=name)
    for attached in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=attached["PolicyArn"])
    iam.delete_role_policy(RoleName=name, PolicyName="s3")
    iam.delete_role(RoleName=name)


def lay(guest: Guest, more: dict[str, str] | None = None) -> None:
    """Put the programs of a driver into a guest, and these files."""
    files = {name: (file.content, file.mode) for name, file in install.payload().items()}
    files["/var/lib/kiln-lab/driver.json"] = (_DRIVER.encode(), 0o644)
    files |= {name: (text.encode(), 0o644) for name, text in (more or {}).items()}
    guest.unpack(files)


def did(guest: Guest, command: str) -> str:
    """The output of a command that must succeed."""
    done = guest.run(command)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def tree(guest: Guest) -> set[str]:
    """The files that an installation may change, each with its SHA-256."""
    return set(did(guest, _TREE).splitlines())


def until_online(ssm: Any, ids: list[str], seconds: float = 90) -> None:
    """Wait until Systems Manager reaches all of these instances."""
    wanted = set(ids)
    filters = [{"Key": "InstanceIds", "Values": sorted(wanted)}]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        listed = ssm.describe_instance_information(Filters=filters)["InstanceInformationList"]
        if {
            association["InstanceId"]
            for association in listed
            if association["PingStatus"] == "Online"
        } == wanted:
            return
        time.sleep(0.3)
    raise AssertionError("not every agent registers")
