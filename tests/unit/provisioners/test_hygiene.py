"""hygiene.sh: nothing of the build instance is left on the image."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kiln.base.paths import PROVISIONERS
from tests.unit.provisioners.machine import plant

pytestmark = pytest.mark.slow

CLEAN = {
    "etc/passwd": "root:x:0:0::/root:/bin/bash\nec2-user:x:1000:1000::/home/ec2-user:/bin/bash\n",
    "etc/shadow": "root:*LOCK*:1::::::\nec2-user:!!:1::::::\n",
    "etc/machine-id": "",
    "var/log/lastlog": "x",
    "var/tmp/systemd-private-1/keep": "x",
    "home/ec2-user/.bashrc": "x",
}


DIRTY = {
    "SSH host keys": ("etc/ssh/ssh_host_rsa_key", "x"),
    "SSH keys of users": ("home/ec2-user/.ssh/authorized_keys", "ssh-rsa AAAA packer"),
    "shell and tool histories": ("root/.bash_history", "x"),
    "credentials of users": ("home/ec2-user/.aws/credentials", "x"),
    "private keys": ("opt/kiln/x", "-----BEGIN RSA PRIVATE KEY-----"),
    "AWS access keys": ("etc/kiln/x", "key=AKIA" + "A" * 16),
    "machine id": ("etc/machine-id", "0" * 32),
    "D-Bus machine id": ("var/lib/dbus/machine-id", "0" * 32),
    "host name": ("etc/hostname", "ip-10-0-0-1.ec2.internal"),
    "package history": ("var/lib/dnf/history.sqlite-wal", "x"),
    "cloud-init state": ("var/lib/cloud/instances/i-1/x", "x"),
    "random seed and credential secret": ("var/lib/systemd/random-seed", "x"),
    "logs with content": ("var/log/syslog", "x"),
    "session logs": ("var/log/wtmp", ""),
    "journals of the build instance": ("var/log/journal/0123/system.journal", ""),
    "GPU events": ("var/log/gpuevent.log.1", "x"),
    "CloudWatch agent state": ("opt/aws/amazon-cloudwatch-agent/logs/state/x", "x"),
    "ECS agent registration": ("var/lib/ecs/data/agent.db", "x"),
    "ECS agent logs": ("var/log/ecs/ecs-init.log.2026", ""),
    "SSM agent registration": ("var/lib/amazon/ssm/Vault/x", "x"),
    "package caches": ("var/cache/apt/archives/x.deb", "x"),
    "package sources of a snapshot": (
        "etc/apt/sources.list.d/kiln-package-snapshot.list",
        "deb https://snapshot/ jammy main",
    ),
    "build files": ("var/tmp/kiln/x", "x"),
    "temporary files": ("tmp/x", "x"),
    "passwords": ("etc/shadow", "root:$6$salt$hash:1::::::\n"),
    "proxy and mirrors of the bake": (
        "etc/yum.repos.d/nvidia-cuda.repo",
        "baseurl=https://mirror.example.com/nvidia/compute/cuda",
    ),
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


def test_clean_image_passes(tmp_path: Path):
    plant(tmp_path, CLEAN)
    done, report = hygiene(tmp_path)
    assert done.returncode == 0, done.stderr
    assert report["failed"] == 0
    assert {check["check"] for check in report["checks"]} == set(DIRTY)


@pytest.mark.parametrize("name", DIRTY)
def test_leftover_stops_the_bake(tmp_path: Path, name: str):
    path, content = DIRTY[name]
    plant(tmp_path, {**CLEAN, path: content})
    done, report = hygiene(tmp_path)
    assert done.returncode == 1
    assert f"ERROR: {name}: " in done.stderr
    assert name in [check["check"] for check in report["checks"] if not check["ok"]]


# More forms of what is left.
FORMS = {
    "etc/apt/apt.conf.d/90x": (
        'Acquire::http::Proxy "http://proxy.example.com:3128/";', "proxy and mirrors of the bake"
    ),
    "etc/profile.d/x": (
        "export https_proxy=proxy.example.com:3128", "proxy and mirrors of the bake"
    ),
    # With which DKMS signed its modules.
    "var/lib/dkms/mok.key": ("-----BEGIN PRIVATE KEY-----\n", "private keys"),
    "var/lib/shim-signed/mok/MOK.priv": ("-----BEGIN PRIVATE KEY-----\n", "private keys"),
}  # fmt: skip


@pytest.mark.parametrize("path", FORMS)
def test_leftover_is_found_in_other_forms(tmp_path: Path, path: str) -> None:
    content, check = FORMS[path]
    plant(tmp_path, {**CLEAN, path: content})
    done, _ = hygiene(tmp_path)
    assert done.returncode == 1
    assert f"ERROR: {check}: {tmp_path}/{path}" in done.stderr
