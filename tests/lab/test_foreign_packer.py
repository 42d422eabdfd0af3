"""A rendered folder builds by hand, with Packer alone."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from conftest import AL2, ROOT

from devel.testbed import bare_checkout
from kiln.packer.program import Packer
from lab.daemon import control


@pytest.mark.all
def test_a_rendered_folder_builds_by_hand_from_any_directory(
    lab, ec2, source_ami, packer: Packer, tmp_path: Path
):
    if packer.has_plugins and os.environ.get("KILN_LAB_SEED") != "none":
        pytest.skip("its plugin gives up on an AMI that EC2 does not know yet")
    # Packer by itself takes {{ in a path for a template of its own.
    # The lab's keys are in the file of variables.
    keep = "nvidia-repo"
    checkout = bare_checkout(tmp_path, keep, baked=(keep,), name="my checkout")
    subprocess.run([checkout / "invoke", "render"], check=True, stdout=subprocess.DEVNULL)
    row = checkout / "packer" / "al2-classic-base-x86_64"
    name = f"by-hand-{time.time():.0f}"
    # The file and the line that lab.up prints.
    up = subprocess.run([ROOT / "invoke", "lab.up"], capture_output=True, text=True, check=True)
    printed = re.search(
        r"-var-file=(\S+) -var source_ami=ami-\.\.\. FOLDER$", up.stderr, re.MULTILINE
    )
    assert printed, up.stderr
    # As the head of recipe.pkr.hcl says, but for the lab's variables.
    head = (row / "recipe.pkr.hcl").read_text()
    assert "#   packer build -var source_ami=ami-... -var 'ssh_source_cidrs=" in head
    done = subprocess.run(
        [
            *(str(packer.path), "build", f"-var-file={printed[1]}"),
            *("-var", f"source_ami={source_ami}", "-var", f"ami_name={name}"),
            *("-var", f"manifest={tmp_path / 'manifest.json'}"),
            str(row / packer.template),
        ],
        cwd="/",
        env={**os.environ, **control.environment(lab)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (image,) = ec2.describe_images(Filters=[{"Name": "name", "Values": [name]}])["Images"]
    tags = {tag["Key"]: tag["Value"] for tag in image["Tags"]}
    assert tags["kiln:recipe"] == AL2
    assert tags["kiln:run-id"].startswith("by-hand-")
