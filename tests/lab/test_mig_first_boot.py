"""README's image on the machine that the project was founded for: a p4d.24xlarge, cut by its tag.

The AMI is the one that test_build.py bakes. What is on it runs as it does there: fabric manager,
persistenced and the CloudWatch agent have the GPUs open.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Finished, Guest, launching, wait_for

from tests.unit.mig.machine import layouts

SERVICES = (
    "nvidia-fabricmanager nvidia-persistenced amazon-cloudwatch-agent kiln-mig kiln-gpu-health"
)
FAULTS = "/var/lib/kiln-lab/nvidia-smi-faults.json"


# When the guest's systemd began; then whether it runs and what it still has to do.
STATE = (
    "systemctl show -p UserspaceTimestampMonotonic --value; stat -c %Z /run/systemd; echo =; "
    "systemctl is-system-running; systemctl list-jobs --no-legend"
)


def settled(guest: Guest, before: str = "") -> str:
    """Wait until a boot other than `before` is complete and no reboot is due; which boot it is."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        # Each question costs the guest as much as a command of nvidia-smi.
        boot, _, state = guest.run(STATE).stdout.partition("=")
        if boot.strip() and boot != before and state.split() in (["running"], ["degraded"]):
            return boot
        time.sleep(0.5)
    raise AssertionError(guest.run("systemctl list-jobs; systemctl --failed").stdout)


@pytest.fixture(scope="module")
def p4d(built: Finished, ec2: Any, key: tuple[str, Path], source_ami: str) -> Iterator[Guest]:
    with launching(ec2, key, source_ami) as launch:
        yield launch(
            built.record["ami_id"],
            InstanceType="p4d.24xlarge",
            MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
            TagSpecifications=[{"ResourceType": "instance", "Tags": [
                {"Key": "kiln:mig-config", "Value": "all-1g.5gb"}]}],
        )  # fmt: skip


def assert_cut(guest: Guest) -> None:
    """56 slices, and everything runs that runs on this image."""
    journal = guest.run("sudo journalctl -b -o cat -u kiln-mig").stdout
    listed = guest.run("sudo nvidia-smi mig -lgi").stdout
    assert listed.count("MIG 1g.5gb") == 56, journal + listed
    assert guest.run("nvidia-smi -L").stdout.count("MIG 1g.5gb") == 56
    assert json.loads(guest.run("sudo /usr/local/bin/gpu-mig verify --json").stdout)["ok"] is True
    active = guest.run(f"systemctl is-active {SERVICES}").stdout.split()
    assert active == ["active"] * len(SERVICES.split()), active
    assert guest.run("systemctl --failed --no-legend").stdout == ""
    holders = guest.run("sudo ls -l /proc/$(pgrep -f nv-fabricmanager | head -n 1)/fd").stdout
    assert "/dev/nvidia7" in holders


def stop_and_start(ec2: Any, guest: Guest) -> None:
    ec2.stop_instances(InstanceIds=[guest.id])
    wait_for(ec2, guest.id, "stopped")
    ec2.start_instances(InstanceIds=[guest.id])
    wait_for(ec2, guest.id, "running")


def test_layout_is_there_after_boot_reboot_and_stop_and_start(p4d: Guest, ec2: Any) -> None:
    """20 layouts of an A100 are full with driver 510; every other one is a part of one of them."""

    def tag(label: str) -> None:
        ec2.create_tags(Resources=[p4d.id], Tags=[{"Key": "kiln:mig-config", "Value": label}])

    def assert_made(label: str) -> None:
        done = p4d.run(f"sudo /usr/local/bin/gpu-mig verify {label}")
        assert done.returncode == 0, done.stdout + done.stderr + journal_of(p4d)
        listed = re.findall(r"(\d+)  MIG (\S+)", p4d.run("sudo nvidia-smi mig -lgi").stdout)
        wanted = [
            (str(gpu), name)
            for gpu, entry in enumerate(labels[label])
            for name, count in entry["mig-devices"].items()
            for _ in range(count)
        ]
        assert sorted(listed) == sorted(wanted)

    first = settled(p4d)
    assert_cut(p4d)
    behind = p4d.run("systemctl list-dependencies --after multi-user.target").stdout
    assert "kiln-mig.service" in behind
    # Where nvidia-smi hangs, nobody waits for these; user data may run after multi-user.target.
    assert not re.search(r"kiln-gpu(-health|-clocks|\.target)", behind), behind
    assert "layout all-1g.5gb (instance tag kiln:mig-config)" in journal_of(p4d)
    _, full = layouts("A100-40GB", "510.47.03")
    labels = {
        f"full-{n}": [
            {"devices": [gpu], "mig-enabled": True, "mig-devices": layout}
            for gpu, layout in enumerate((full * 2)[8 * n : 8 * n + 8])
        ]
        for n in range(3)
    }
    text = json.dumps({"version": "v1", "mig-configs": labels})
    p4d.unpack({"/etc/kiln/mig-config.d/full.json": (text.encode(), 0o644)})
    for label in labels:
        p4d.run(f"sudo /usr/local/bin/gpu-mig apply {label}")
        assert_made(label)
    tag("full-0")
    ec2.reboot_instances(InstanceIds=[p4d.id])
    settled(p4d, first)
    assert_made("full-0")
    tag("all-1g.5gb")
    stop_and_start(ec2, p4d)
    settled(p4d)
    assert_cut(p4d)
    # A reset was not refused: nothing was rebooted.
    assert "rebooting once" not in journal_of(p4d)


@pytest.mark.all
def test_one_reboot_where_fabric_manager_blocks_the_reset(p4d: Guest, ec2: Any) -> None:
    faults = json.dumps({"blocks_reset": {"nv-fabricmanager": True}})
    assert p4d.run(f"echo '{faults}' | sudo tee {FAULTS} && sync").returncode == 0
    stop_and_start(ec2, p4d)
    settled(p4d)
    assert_cut(p4d)
    assert journal_of(p4d).count("rebooting once") == 1


def journal_of(guest: Guest) -> str:
    """What the unit has said in all boots."""
    return guest.run("sudo journalctl -o cat -u kiln-mig").stdout
