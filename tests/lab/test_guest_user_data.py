"""Foreign clients pass each kind of user-data, through a launch template with resolve:ssm."""

from __future__ import annotations

import base64
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Any

from conftest import Guest, wait_for

IMAGE = "resolve:ssm:/aws/service/debian/release/12/latest/amd64"
SCRIPT = "#!/bin/bash\ncat /proc/self/cgroup > /script\n"
CONFIG = "#cloud-config\nwrite_files: [{path: /config, content: config}]\nruncmd: [touch /ran]\n"
HOOK = "#cloud-boothook\n#!/bin/sh\necho hook > /hook\n"


def parts(**texts: str) -> bytes:
    """A MIME message with a part of each kind."""
    message = MIMEMultipart()
    for kind, text in texts.items():
        message.attach(MIMEText(text, kind.replace("_", "-")))
    return message.as_bytes()


def test_template_with_resolve_ssm_runs_mime_user_data(ec2: Any, key: tuple[str, Path]):
    user_data = parts(x_shellscript=SCRIPT, cloud_config=CONFIG, cloud_boothook=HOOK)
    name, made = "user-data", ["/script", "/config", "/ran", "/hook"]
    ec2.create_launch_template(
        LaunchTemplateName=name,
        LaunchTemplateData={
            "ImageId": IMAGE,
            "InstanceType": "t3.micro",
            "KeyName": key[0],
            "UserData": base64.b64encode(user_data).decode(),
        },
    )
    started = ec2.run_instances(
        MinCount=1, MaxCount=1, LaunchTemplate={"LaunchTemplateName": name}
    )["Instances"][0]["InstanceId"]
    try:
        guest = Guest(started, wait_for(ec2, started, "running"), "admin", key[1])
        done = guest.run(f"cloud-init status --wait > /dev/null; ls {' '.join(made)}")
        assert sorted(done.stdout.split()) == sorted(made), done.stderr
        # A script runs as part of the unit that EC2 runs it in, and what the lab's cloud-init keeps
        # loaded between its stages is gone.
        assert "/cloud-final.service" in guest.run("cat /script").stdout
        assert (
            guest.run(
                "pgrep -f '[k]iln-lab-cloud-init'; ls /run/[k]iln-lab-cloud-init 2> /dev/null"
            ).stdout
            == ""
        )
    finally:
        ec2.terminate_instances(InstanceIds=[started])
        wait_for(ec2, started, "terminated")
        ec2.delete_launch_template(LaunchTemplateName=name)
