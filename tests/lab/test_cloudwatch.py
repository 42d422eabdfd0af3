"""What a guest reports arrives in CloudWatch: one guest with the bundle, seen by plain clients."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Guest, launching

from kiln.telemetry import Telemetry, bundle
from lab.mirror import cloudwatch
from lab.standins.nvidia_smi import install

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        },
    }
)
GROUP = "/kiln/events"
SETTINGS = Telemetry(interval=1, namespace="Kiln", log_group=GROUP, retention_days=14)
# The agent's own settings, so that a test need not wait a minute.
QUICK = {"metrics": {"force_flush_interval": 1}, "logs": {"force_flush_interval": 1}}
MERGED = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
DRIVER = '{"version": "580.95.05", "kernel_module": "open", "cuda": "13.0"}'


@pytest.fixture(scope="module")
def profile(client: Callable[[str], Any]) -> Iterator[dict[str, str]]:
    iam, name = client("iam"), f"reports-{time.time_ns()}"
    policy = "arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    iam.attach_role_policy(RoleName=name, PolicyArn=policy)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    yield {"Name": name}
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    iam.delete_instance_profile(InstanceProfileName=name)
    iam.detach_role_policy(RoleName=name, PolicyArn=policy)
    iam.delete_role(RoleName=name)


@pytest.fixture(scope="module")
def guest(
    ec2: Any,
    key: tuple[str, Path],
    source_ami: str,
    profile: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guest]:
    """A g4dn.xlarge whose agent reports its GPU and its events."""
    folder = tmp_path_factory.mktemp("bundle")
    bundle.write_bundle(folder / "kiln-telemetry.sh", SETTINGS)
    assert cloudwatch.package("1.300072.0b1766", "rpm", "x86_64", folder / "agent.rpm")
    with launching(ec2, key, source_ami) as launch:
        made = launch(IamInstanceProfile=profile)
        _lay(made, folder)
        install_it = "sudo bash /root/kiln-telemetry.sh --agent-package /root/agent.rpm"
        done = made.run(f"{install_it} && sudo mv /root/quick.json {MERGED}/")
        assert done.returncode == 0, done.stdout + done.stderr
        assert made.run("sudo systemctl restart amazon-cloudwatch-agent").returncode == 0
        yield made


def _lay(guest: Guest, folder: Path) -> None:
    """The folder's files, the driver's programs and the agent's quick settings."""
    files = {name: (file.content, file.mode) for name, file in install.payload().items()}
    files["/var/lib/kiln-lab/driver.json"] = (DRIVER.encode(), 0o644)
    files |= {f"/root/{path.name}": (path.read_bytes(), 0o644) for path in folder.iterdir()}
    files["/root/quick.json"] = (json.dumps(QUICK).encode(), 0o644)
    guest.unpack(files)


def until(found: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Wait until there is a result."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = found()
        if result:
            return result
        time.sleep(0.2)
    raise AssertionError(what)


def test_an_xid_in_a_guest_arrives(guest, client) -> None:
    logs, mark = client("logs"), f"kiln{uuid.uuid4().hex[:8]}"

    def events() -> list[dict[str, Any]]:
        try:
            found = logs.filter_log_events(logGroupName=GROUP, logStreamNames=[guest.id])
        except logs.exceptions.ResourceNotFoundException:
            return []
        return [event for event in found["events"] if mark in event["message"]]

    before = time.time()
    line = f"NVRM: Xid (PCI:0000:00:1e): 79, pid=7, name={mark}, GPU lost"
    guest.run(f"echo '{line}' | sudo tee /dev/kmsg")
    after = time.time()
    (event,) = until(events, "the event does not arrive")
    assert before - 1 < event["timestamp"] / 1000 < after + 1

    def group() -> dict[str, Any]:
        # The agent sets the retention after the first event.
        (found,) = logs.describe_log_groups(logGroupNamePrefix=GROUP)["logGroups"]
        return dict(found) if "retentionInDays" in found else {}

    assert until(group, "no retention is set")["retentionInDays"] == 14


def test_gpu_metrics_arrive_with_the_instances_dimensions(guest, client, ec2) -> None:
    watch, name = client("cloudwatch"), "nvidia_smi_memory_total"

    def listed() -> list[dict[str, Any]]:
        found = watch.list_metrics(Namespace="Kiln", MetricName=name)["Metrics"]
        # moto lists a series as often as it was sent.
        series = {tuple((d["Name"], d["Value"]) for d in m["Dimensions"]) for m in found}
        return [dict(dimensions) for dimensions in series]

    until(lambda: len(listed()) > 1, "no metric arrives")
    (shown,) = ec2.describe_instances(InstanceIds=[guest.id])["Reservations"][0]["Instances"]
    own = {
        "ImageId": shown["ImageId"],
        "InstanceId": guest.id,
        "InstanceType": "g4dn.xlarge",
        "arch": "Turing",
        "index": "0",
        "name": "Tesla T4",
    }
    assert sorted(listed(), key=len) == [{"InstanceId": guest.id}, own]
