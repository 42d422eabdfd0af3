"""Ansible, on which we do not depend, works on a guest as on an instance, by itself and as a
provisioner of Packer's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch

from devel import packers
from lab.daemon import control

FOREIGN = Path(__file__).parent / "foreign"
WALK = FOREIGN / "walk.yml"
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


@pytest.fixture
def playbook() -> str:
    """The path of ansible-playbook."""
    found = os.environ.get("KILN_ANSIBLE") or shutil.which("ansible-playbook")
    if not found:
        pytest.skip("Ansible: KILN_ANSIBLE=/path/to/ansible-playbook")
    return found


def test_a_playbook_writes_as_root_reboots_and_goes_on(
    client: Any, launch: Launch, playbook: str, tmp_path: Path
) -> None:
    """What its user may not write is refused in the words that a real Ubuntu has."""
    ami = client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    guest = launch(ami, user="ubuntu", InstanceType="t3.micro")
    done = subprocess.run(
        [
            *(playbook, "-i", f"{guest.address},", "-u", guest.user),
            *("--private-key", str(guest.key), str(WALK)),
        ],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_SSH_RETRIES": "5",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed=0" in done.stdout


def test_packers_ansible_provisioner_bakes_with_the_playbook(
    lab: Any, client: Any, ec2: Any, playbook: str, tmp_path: Path
) -> None:
    """Debian's Packer has the provisioner built in; newer ones have it as a plugin of its own."""
    packer = next((packer.path for packer in packers.usable() if not packer.has_plugins), None)
    if not packer:
        pytest.skip("needs Packer 1.6, with its provisioners built in")
    ami = client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    name = f"walked-{time.time():.0f}"
    given = {"endpoint": lab.endpoint, "source_ami": ami, "name": name, "ansible": playbook}
    variables = [word for key, value in given.items() for word in ("-var", f"{key}={value}")]
    done = subprocess.run(
        [str(packer), "build", *variables, str(FOREIGN / "ansible.pkr.hcl")],
        env={
            **control.environment(lab),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "AWS_POLL_DELAY_SECONDS": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (image,) = ec2.describe_images(Filters=[{"Name": "name", "Values": [name]}])["Images"]
    ec2.deregister_image(ImageId=image["ImageId"], DeleteAssociatedSnapshots=True)
