"""Packer alone, without AMI Kiln, builds in the lab as in EC2."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from conftest import AL2, ROOT, import_key, launching, plain_client

from devel.testbed import bare_checkout
from kiln.packer import program
from lab.daemon import control

TEMPLATE = """
variable "source_ami" { type = string }
variable "endpoint" { type = string }
variable "name" { type = string }

source "amazon-ebs" "plain" {
  region                      = "us-east-1"
  custom_endpoint_ec2         = var.endpoint
  skip_metadata_api_check     = true
  skip_region_validation      = true
  skip_credential_validation  = true
  source_ami                  = var.source_ami
  instance_type               = "t3.micro"
  ssh_username                = "ec2-user"
  ami_name                    = var.name
  ami_regions                 = ["eu-west-1"]
  encrypt_boot                = true
  tags                        = { team = "ml" }
  temporary_security_group_source_cidrs = ["127.0.0.1/32"]
}

build {
  sources = ["source.amazon-ebs.plain"]
  provisioner "shell" {
    inline = ["echo by-hand | sudo tee /opt/by-hand"]
  }
}
"""


def test_packer_builds_encrypted_for_two_regions(lab, ec2, source_ami, key, tmp_path: Path):
    template = tmp_path / "plain.pkr.hcl"
    template.write_text(TEMPLATE)
    name = f"plain-{time.time():.0f}"
    done = subprocess.run(
        [
            *(str(program.find_packer().path), "build", "-var", f"source_ami={source_ami}"),
            *("-var", f"endpoint={lab.endpoint}", "-var", f"name={name}", str(template)),
        ],
        env={
            **control.environment(lab),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "AWS_POLL_DELAY_SECONDS": "1",
            # Where a newer Packer finds its plugin, if this test run has one.
            **{n: os.environ[n] for n in ("PACKER_PLUGIN_PATH",) if n in os.environ},
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    elsewhere = plain_client(lab, "ec2", "eu-west-1")
    for client in (ec2, elsewhere):
        mine = client.describe_images(Owners=["self"], Filters=[{"Name": "name", "Values": [name]}])
        (image,) = mine["Images"]
        assert image["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
        assert image["Tags"] == [{"Key": "team", "Value": "ml"}]
    import_key(elsewhere, key)
    with launching(elsewhere, key, image["ImageId"]) as launch:
        assert launch().run("cat /opt/by-hand").stdout == "by-hand\n"
    keys = ec2.describe_key_pairs()["KeyPairs"]
    groups = ec2.describe_security_groups()["SecurityGroups"]
    assert not [key for key in keys if key["KeyName"].startswith("packer")]
    assert not [group for group in groups if group["GroupName"].startswith("packer")]


def test_a_rendered_folder_builds_by_hand_from_any_directory(lab, ec2, source_ami, tmp_path: Path):
    # Packer by itself takes {{ in a path for a template of its own.
    # The lab's keys are in the file of variables.
    keep = "nvidia-repo"
    checkout = bare_checkout(tmp_path, keep, baked=(keep,), name="my checkout")
    subprocess.run([checkout / "invoke", "render"], check=True, stdout=subprocess.DEVNULL)
    found = program.find_packer()
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
            *(str(found.path), "build", f"-var-file={printed[1]}"),
            *("-var", f"source_ami={source_ami}", "-var", f"ami_name={name}"),
            *("-var", f"manifest={tmp_path / 'manifest.json'}"),
            str(row if found.has_plugins else row / program.FOLDER_1_6),
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
