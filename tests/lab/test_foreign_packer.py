"""A Packer template that AMI Kiln did not write builds in the lab as in EC2."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from kiln.packer import program

TEMPLATE = """
variable "source_ami" { type = string }
variable "endpoint" { type = string }
variable "name" { type = string }

source "amazon-ebs" "plain" {
  region                      = "us-east-1"
  access_key                  = "any"
  secret_key                  = "key"
  custom_endpoint_ec2         = var.endpoint
  skip_metadata_api_check     = true
  skip_region_validation      = true
  skip_credential_validation  = true
  source_ami                  = var.source_ami
  instance_type               = "t3.micro"
  ssh_username                = "ec2-user"
  ami_name                    = var.name
  temporary_security_group_source_cidrs = ["127.0.0.1/32"]
}

build {
  sources = ["source.amazon-ebs.plain"]
  provisioner "shell" {
    inline = ["echo by-hand | sudo tee /opt/by-hand"]
  }
}
"""


def test_it_builds_with_its_own_temporary_key_and_group(
    lab, ec2, source_ami, launch, tmp_path: Path
):
    template = tmp_path / "plain.pkr.hcl"
    template.write_text(TEMPLATE)
    name = f"plain-{time.time():.0f}"
    done = subprocess.run(
        [
            *(str(program.find().path), "build", "-var", f"source_ami={source_ami}"),
            *("-var", f"endpoint={lab.endpoint}", "-var", f"name={name}", str(template)),
        ],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "AWS_POLL_DELAY_SECONDS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    images = ec2.describe_images(Owners=["self"], Filters=[{"Name": "name", "Values": [name]}])
    assert launch(images["Images"][0]["ImageId"]).run("cat /opt/by-hand").stdout == "by-hand\n"
    keys = ec2.describe_key_pairs()["KeyPairs"]
    groups = ec2.describe_security_groups()["SecurityGroups"]
    assert not [key for key in keys if key["KeyName"].startswith("packer")]
    assert not [group for group in groups if group["GroupName"].startswith("packer")]
