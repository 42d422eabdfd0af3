"""Instances as workers of an engine: each a machine of its own that has a role, Debian's git and
Packer, Python's packages and a repository to clone, and shares nothing else with the others."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Guest, copied, launching, wait_for

from devel.testbed import bare_checkout
from kiln.cloud import iam
from lab.base.settings import Lab
from lab.machine import bridge

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "kiln-records"
USER = "admin"
# What only tests, linters and the lab need.
_UNUSED = ("cfnlint", "grimp", "hypothesis", "moto", "mpmath", "mypy*", "networkx", "sympy", "*mypyc*")  # fmt: skip  # noqa: E501
_TRUST = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Principal": {"Service": "ec2.amazonaws.com"},
        "Action": "sts:AssumeRole",
    },
}
# What a worker's image sets for every program, as CodeBuild's project does.
ENVIRONMENT = {
    "AWS_REGION": "us-east-1",
    "AWS_CA_BUNDLE": "/etc/ssl/certs/ca-certificates.crt",
    "KILN_AWS_RECORDS_BUCKET": BUCKET,
    "KILN_AWS_SSH_INTERFACE": "private_ip",
    "KILN_TESTS_ALLOW_PACKER_1_6_IN_AWS": "1",
    "PKR_VAR_poll_seconds": "1",
    "PKR_VAR_reboot_pause": "1s",
}
_CLONE = """
git clone -q /opt/images.bundle -b main images && cd images
mkdir -p .venv/bin .venv/lib/python3.11
ln -s /usr/bin/python3 .venv/bin/python
ln -s /opt/packages .venv/lib/python3.11/site-packages
printf 'home = /usr/bin\\n' > .venv/pyvenv.cfg
cp requirements.lock .venv/.made-from
"""


def repository(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A bundle of a repository with these rows, whose provisioners and checks do nothing."""
    checkout = bare_checkout(folder)
    (checkout / ".venv").unlink()
    path = checkout / "amis.yaml"
    matrix = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**matrix, "amis": rows}, sort_keys=False))
    bundle = folder / "images.bundle"
    for command in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "images"),
        ("bundle", "create", "-q", str(bundle), "main"),
    ):
        subprocess.run(["git", "-C", str(checkout), *command], check=True, capture_output=True)
    return bundle


def roles(client: Any) -> tuple[str, str]:
    """The profiles of a worker and of a planner: what the documentation gives each, no more."""
    settings = iam.policy("settings")
    records = [
        statement
        for statement in settings["Statement"]
        if statement["Sid"] in ("KeepRecords", "ListRecords")
    ]
    shared = {**settings, "Statement": records}
    worker = {
        "build": iam.policy(),
        "publish": iam.policy("publish"),
        "records": shared,
    }
    planner = {"plan": iam.policy("plan"), "records": shared}
    return _profile(client, "worker", worker), _profile(client, "planner", planner)


def _profile(client: Any, kind: str, policies: dict[str, Any]) -> str:
    name, made = f"ami-kiln-{kind}", client("iam")
    made.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(_TRUST))
    for key, document in policies.items():
        made.put_role_policy(RoleName=name, PolicyName=key, PolicyDocument=json.dumps(document))
    made.create_instance_profile(InstanceProfileName=name)
    made.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return name


def reached(guest: Guest, patience: int = 120) -> None:
    """Wait until a guest answers by SSH: it runs before that."""
    for _ in range(patience):
        if guest.run("true").returncode == 0:
            return
        time.sleep(1)
    pytest.fail(f"{guest.id} does not answer by SSH", pytrace=False)


@contextmanager
def image(ec2: Any, key: tuple[str, Path], bundle: Path) -> Iterator[str]:
    """An AMI of workers; it is gone when the block ends."""
    found = ec2.describe_images(Filters=[{"Name": "name", "Values": ["debian-12-amd64-*"]}])
    parent = copied(ec2, found["Images"][0]["ImageId"], "debian-for-workers")
    with launching(ec2, key, parent) as launch:
        machine = launch(user=USER, InstanceType="t3.micro")
        reached(machine)
        sources = f"{ROOT}/.venv/lib/python3.11/site-packages"
        unused = " ".join(f"--exclude={shlex.quote(name)}" for name in (*_UNUSED, "__pycache__"))
        ssh = f"ssh -i {machine.key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        ssh += f" -o LogLevel=ERROR {USER}@{machine.address}"
        into = "sudo mkdir -p /opt/packages && sudo tar -xf - -C"
        for send in (
            f"tar -cf - -C {sources} {unused} . | {ssh} '{into} /opt/packages'",
            f"tar -cf - -C {bundle.parent} {bundle.name} | {ssh} '{into} /opt'",
        ):
            subprocess.run(["bash", "-c", f"set -o pipefail; {send}"], check=True, timeout=300)
        apt = "sudo apt-get install -qy --no-install-recommends git packer"
        lines = "".join(f"{name}={value}\n" for name, value in ENVIRONMENT.items())
        done = machine.run(f"{apt} && printf {shlex.quote(lines)} | sudo tee -a /etc/environment")
        assert done.returncode == 0, done.stdout + done.stderr
        made = ec2.create_image(InstanceId=machine.id, Name="worker")["ImageId"]
        ec2.get_waiter("image_available").wait(ImageIds=[made], WaiterConfig={"Delay": 1})
    yield made
    for ami_id in (made, parent):
        ec2.deregister_image(ImageId=ami_id)


@contextmanager
def way_to_instances(lab: Lab, guest: Guest) -> Iterator[None]:
    """While inside, a guest reaches other guests: the lab keeps them apart, whatever security
    groups say, and a worker reaches what it launches as from inside a VPC."""
    port = bridge.port(lab, guest.address)
    subprocess.run(
        ["ip", "link", "set", port, "type", "bridge_slave", "isolated", "off"], check=True
    )
    rule = ["ip", "saddr", guest.address, "ip", "daddr", lab.network, "accept"]
    added = subprocess.run(
        ["nft", "--echo", "--handle", "insert", "rule", "ip", lab.table, "forward", *rule],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    handle = added.stdout.rpartition("handle ")[2].strip()
    try:
        yield
    finally:
        delete = ["nft", "delete", "rule", "ip", lab.table, "forward", "handle", handle]
        subprocess.run(delete, check=True)


class Worker:
    """A worker with a fresh clone."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        reached(guest)
        done = guest.run(_CLONE, timeout=300)
        assert done.returncode == 0, done.stderr

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command in the clone, as a buildspec does."""
        guest = self.guest
        inside = f"set -a; . /etc/environment; cd images && bash -c {shlex.quote(command)}"
        ssh = ["ssh", "-i", str(guest.key), "-o", "StrictHostKeyChecking=no"]
        ssh += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        ssh += ["-o", "ServerAliveInterval=5", f"{guest.user}@{guest.address}"]
        return subprocess.Popen(
            [*ssh, inside], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, command: str) -> str:
        """The standard output of a command that must succeed."""
        return ended(self.start(command))


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for a worker's command, which must succeed; its standard output."""
    out, errors = process.communicate(timeout=900)
    if process.returncode:
        pytest.fail(
            f"exit status {process.returncode}\n{out[-3000:]}{errors[-6000:]}", pytrace=False
        )
    return out


def lost(ec2: Any, worker: Worker) -> None:
    """The machine is gone, without a warning to what ran there."""
    ec2.terminate_instances(InstanceIds=[worker.guest.id])
    wait_for(ec2, worker.guest.id, "terminated")
