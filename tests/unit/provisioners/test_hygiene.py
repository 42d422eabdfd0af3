"""hygiene.sh: nothing of the build instance is left on the image."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from kiln.base.paths import PROVISIONERS
from tests.unit.provisioners.machine import plant

CLEAN = {
    "etc/passwd": "root:x:0:0::/root:/bin/bash\nec2-user:x:1000:1000::/home/ec2-user:/bin/bash\n",
    "etc/shadow": "root:*LOCK*:1::::::\nec2-user:!!:1::::::\n",
    "etc/machine-id": "",
    "var/log/lastlog": "x",
    "var/tmp/systemd-private-1/keep": "x",
    "home/ec2-user/.bashrc": "x",
}


DIRTY = {
    "SSH host keys": {"etc/ssh/ssh_host_rsa_key": "x"},
    "SSH keys of users": {"home/ec2-user/.ssh/authorized_keys": "ssh-rsa AAAA packer"},
    "shell and tool histories": {"root/.bash_history": "x"},
    "credentials of users": {"home/ec2-user/.aws/credentials": "x"},
    "private keys": {
        "opt/kiln/y": "-----BEGIN RSA PRIVATE KEY-----",
        # With which DKMS signed its modules.
        "var/lib/dkms/mok.key": "-----BEGIN PRIVATE KEY-----\n",
        "var/lib/shim-signed/mok/MOK.priv": "-----BEGIN PRIVATE KEY-----\n",
    },
    "AWS access keys": {"etc/kiln/x": "key=AKIA" + "A" * 16},
    "machine id": {"etc/machine-id": "0" * 32},
    "D-Bus machine id": {"var/lib/dbus/machine-id": "0" * 32},
    "host name": {"etc/hostname": "ip-10-0-0-1.ec2.internal"},
    "package history": {"var/lib/dnf/history.sqlite-wal": "x"},
    "cloud-init state": {"var/lib/cloud/instances/i-1/x": "x"},
    "random seed and credential secret": {"var/lib/systemd/random-seed": "x"},
    "logs with content": {"var/log/syslog": "x"},
    "session logs": {"var/log/wtmp": ""},
    "journals of the build instance": {"var/log/journal/0123/system.journal": ""},
    "GPU events": {"var/log/gpuevent.log.1": "x"},
    "CloudWatch agent state": {"opt/aws/amazon-cloudwatch-agent/logs/state/x": "x"},
    "ECS agent registration": {"var/lib/ecs/data/agent.db": "x"},
    "ECS agent logs": {"var/log/ecs/ecs-init.log.2026": ""},
    "SSM agent registration": {"var/lib/amazon/ssm/Vault/x": "x"},
    "package caches": {"var/cache/apt/archives/x.deb": "x"},
    "package sources of a snapshot": {
        "etc/apt/sources.list.d/kiln-package-snapshot.list": "deb https://snapshot/ jammy main"
    },
    "build files": {"var/tmp/kiln/x": "x"},
    "temporary files": {"tmp/x": "x"},
    "passwords": {"etc/shadow": "root:$6$salt$hash:1::::::\n"},
    "proxy and mirrors of the bake": {
        "etc/yum.repos.d/nvidia-cuda.repo": "baseurl=https://mirror.example.com/nvidia/compute",
        "etc/apt/apt.conf.d/90x": 'Acquire::http::Proxy "http://proxy.example.com:3128/";',
        "etc/profile.d/x": "export https_proxy=proxy.example.com:3128",
    },
}


OF_THE_BAKE = {
    "KILN_PROXY": "http://proxy.example.com:3128",
    "KILN_MIRRORS": "https://developer.download.nvidia.com=https://mirror.example.com/nvidia",
}


def hygiene(root: Path) -> tuple[subprocess.CompletedProcess[str], dict]:
    done = subprocess.run(
        ["bash", str(PROVISIONERS / "hygiene.sh")],
        env={"PATH": os.environ["PATH"], "KILN_ROOT": str(root), **OF_THE_BAKE},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, json.loads((root / "etc/kiln/hygiene.json").read_text())


def test_clean_image_passes(tmp_path: Path) -> None:
    plant(tmp_path, CLEAN)
    done, report = hygiene(tmp_path)
    assert done.returncode == 0, done.stderr
    assert report["failed"] == 0
    assert {check["check"] for check in report["checks"]} == set(DIRTY)


def test_one_leftover_stops_the_bake(tmp_path: Path) -> None:
    plant(tmp_path, {**CLEAN, "opt/kiln/x": "-----BEGIN RSA PRIVATE KEY-----"})
    done, report = hygiene(tmp_path)
    assert (done.returncode, report["failed"]) == (1, 1)
    assert f"ERROR: private keys: {tmp_path}/opt/kiln/x" in done.stderr


def test_every_leftover_is_found(tmp_path: Path) -> None:
    plant(
        tmp_path, CLEAN | {path: text for files in DIRTY.values() for path, text in files.items()}
    )
    done, report = hygiene(tmp_path)
    assert done.returncode == 1
    assert {check["check"] for check in report["checks"] if not check["ok"]} == set(DIRTY)
    # One of several forms would hide the others.
    for name, files in ((name, files) for name, files in DIRTY.items() if len(files) > 1):
        (line,) = re.findall(rf"ERROR: {re.escape(name)}: (.*)", done.stderr)
        assert [path for path in files if path not in line] == [], name
