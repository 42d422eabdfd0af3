"""Ansible, which is no dependency of ours, works on a guest as on an instance."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch

WALK = Path(__file__).parent / "foreign" / "walk.yml"
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


def test_a_playbook_writes_as_root_reboots_and_goes_on(
    client: Any, launch: Launch, tmp_path: Path
) -> None:
    """What its user may not write is refused in the words that a real Ubuntu has."""
    program = os.environ.get("KILN_ANSIBLE") or shutil.which("ansible-playbook")
    if not program:
        pytest.skip("Ansible: KILN_ANSIBLE=/path/to/ansible-playbook")
    ami = client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    guest = launch(ami, user="ubuntu", InstanceType="t3.micro")
    done = subprocess.run(
        [
            *(program, "-i", f"{guest.address},", "-u", guest.user),
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
