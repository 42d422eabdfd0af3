"""`lab.down` removes everything that `lab.up` started, however the lab ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    ROOT,
    another_lab,
    inventory,
    lab_of_the_tests,
    plain_client,
    users_environment,
    wait_for,
)

from devel.remains import nothing, on_this_machine
from lab.base.settings import Lab
from lab.daemon import control, root_shell
from lab.machine.guest import leader_of
from tests import surroundings
from tests.unit import commands

Invoke = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def own() -> Lab:
    """Not the lab of the other tests, which must stay up."""
    lab_of_the_tests()
    return another_lab(__file__)


@pytest.fixture(scope="module")
def call(own: Lab, tmp_path_factory: pytest.TempPathFactory) -> Invoke:
    """./invoke with a lab of its own, which shares the bases with all labs."""
    home = tmp_path_factory.mktemp("home")

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own_lab = {"KILN_LAB_INDEX": str(own.index)}
        env = users_environment(home) | own_lab | environment
        return commands.invoke(*arguments, timeout=120, env=env)

    return run


@pytest.fixture
def invoke(call: Invoke, own: Lab) -> Iterator[Invoke]:
    """The same, whose lab is not up yet; it is removed after the test."""
    if own.state.exists():  # that of the tests that only look
        call("lab.clean")
    yield call
    call("lab.clean")


@dataclass(frozen=True)
class Running:
    """A lab that two calls started at once, and an instance in it."""

    ups: list[subprocess.CompletedProcess[str]]
    ec2: Any
    instance: str


@pytest.fixture(scope="module")
def running(own: Lab, call: Invoke) -> Iterator[Running]:
    """For the tests that only look: they are the first of this file."""
    unknown = surroundings.CALLERS["unknown-profile"]
    with ThreadPoolExecutor() as together:
        ups = list(together.map(lambda task: call(task, **unknown), ["lab.up"] * 2))
    yield Running(ups, *launched(own))
    call("lab.clean")


def client(lab: Lab, service: str = "ec2") -> Any:
    return plain_client(lab, service)


def launched(lab: Lab, *, boots: bool = True) -> tuple[Any, str]:
    """A running instance, and the client that launched it. One that does not boot has all that the
    lab makes for an instance, down to its systemd."""
    if not boots:
        control.order_fault(lab, action="boot", code="never")
    name = "/aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2"
    source = client(lab, "ssm").get_parameter(Name=name)["Parameter"]["Value"]
    ec2 = client(lab)
    made = ec2.run_instances(ImageId=source, MinCount=1, MaxCount=1, InstanceType="g4dn.xlarge")
    instance = made["Instances"][0]["InstanceId"]
    wait_for(ec2, instance, "running")
    return ec2, instance


def test_two_who_start_the_lab_at_once_share_it(running: Running) -> None:
    assert [done.returncode for done in running.ups] == [0, 0], running.ups
    assert running.instance


def test_what_up_prints_makes_any_aws_client_talk_to_the_lab(
    running: Running, call: Invoke, own: Lab
) -> None:
    asks = (
        "import boto3; print(len(boto3.client('ec2').describe_images(Owners=['amazon'])['Images']))"
    )
    proxies = surroundings.CALLERS["proxies"]
    for up in (*running.ups, call("lab.up", **proxies)):
        done = subprocess.run(
            ["bash", "-euc", 'eval "$1"; exec "$2" -c "$3"', "bash", up.stdout,
             str(ROOT / ".venv/bin/python"), asks],
            env={"PATH": os.environ["PATH"], **(proxies if "NO_PROXY" in up.stdout else {})},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 0
    again = call("lab.up", "--json")
    assert again.returncode == 0, again.stderr
    to_dict = json.loads(again.stdout)
    assert to_dict["AWS_ENDPOINT_URL"] == own.endpoint
    assert to_dict["AWS_SESSION_TOKEN"] in running.ups[0].stdout


def test_logs_and_shell_reach_the_only_running_guest(
    running: Running, call: Invoke, own: Lab
) -> None:
    instance = running.instance
    deadline = time.monotonic() + 120
    while "cloud-init" not in (output := call("lab.logs", "--instance", instance).stdout):
        assert time.monotonic() < deadline, output
    shell = call("lab.shell")
    assert shell.returncode == 0, shell.stderr
    # A guest that shuts down stops its processes before it kills them; ours must not stop.
    stopped = "(sleep 1; kill -KILL $$) & kill -STOP $$"
    leader = leader_of(int((own.instances / instance / "nspawn.pid").read_text()))
    assert leader
    enter = root_shell.entering(leader)
    done = subprocess.run([*enter, "sh", "-c", stopped], timeout=120, check=False)
    assert done.returncode == 128 + signal.SIGKILL
    running.ec2.terminate_instances(InstanceIds=[instance])
    wait_for(running.ec2, instance, "terminated")
    done = call("lab.shell")
    assert done.returncode == 2
    assert "no guest is running" in done.stderr


@pytest.mark.all
def test_down_by_force_ends_the_build_in_the_lab(
    running: Running, call: Invoke, own: Lab, tmp_path: Path
) -> None:
    before = inventory(running.ec2)
    env = users_environment(tmp_path) | {"KILN_LAB_INDEX": str(own.index)}
    row = ("--distro", "al2", "--driver", "510.47.03")
    build = commands.start("build", *row, "--target", "lab", env=env)
    while inventory(running.ec2)["instances"] == before["instances"]:
        assert build.poll() is None, build.end()
        time.sleep(0.2)
    refused = call("lab.down")
    assert refused.returncode == 1, refused.stderr
    assert re.search(rf"{own.bridge} is in use: run .* of al2-510.*--force", refused.stderr, re.S)
    # What is new may be missing from a list once more (lab/moto/ec2/consistency.py).
    while inventory(running.ec2)["instances"] == before["instances"]:
        assert build.poll() is None, build.end()
        time.sleep(0.2)
    done = call("lab.down", "--force")
    assert done.returncode == 0, done.stderr
    assert re.search("ending run .* of al2-510", done.stderr)
    ended = build.end()
    assert ended.returncode == 1, ended.stderr
    assert "cleaned up: " in ended.stderr
    assert "Traceback" not in done.stderr + ended.stderr
    left = [path for path in tmp_path.rglob("*") if path.name in ("run.json", "key")]
    assert left == [], ended.stderr
    assert on_this_machine(own) == nothing(own)
    assert call("lab.clean").returncode == 0


def snapshot_of(ec2: Any, image: str) -> Any:
    (found,) = ec2.describe_images(ImageIds=[image])["Images"]
    (device,) = found["BlockDeviceMappings"]
    return ec2.describe_snapshots(SnapshotIds=[device["Ebs"]["SnapshotId"]])["Snapshots"][0]


def test_down_keeps_amis_with_tags_and_disk(invoke: Invoke, own: Lab) -> None:
    assert invoke("lab.up").returncode == 0
    ec2, instance = launched(own)
    image = ec2.create_image(InstanceId=instance, Name="kept")["ImageId"]
    ec2.get_waiter("image_available").wait(ImageIds=[image], WaiterConfig={"Delay": 1})
    ec2.create_tags(Resources=[image], Tags=[{"Key": "kiln:verified", "Value": "pass today"}])
    share = {"CreateVolumePermission": {"Add": [{"UserId": "111122223333"}]}}
    snapshot = snapshot_of(ec2, image)["SnapshotId"]
    ec2.create_tags(Resources=[snapshot], Tags=[{"Key": "kiln:run", "Value": "one"}])
    ec2.modify_snapshot_attribute(SnapshotId=snapshot, **share)
    before = snapshot_of(ec2, image)
    assert image in before["Description"]
    wait_for(ec2, instance, "running")
    assert [kind for kind, result in on_this_machine(own).items() if not result] == []
    done = invoke("lab.down")
    assert done.returncode == 0, done.stderr
    assert on_this_machine(own) == nothing(own)
    assert invoke("lab.status").returncode == 1
    assert invoke("lab.up").returncode == 0
    (result,) = client(own).describe_images(Owners=["self"])["Images"]
    assert (result["ImageId"], result["Name"], result["State"]) == (image, "kept", "available")
    assert result["Tags"] == [{"Key": "kiln:verified", "Value": "pass today"}]
    ec2 = client(own)
    after = snapshot_of(ec2, image)
    for part in ("SnapshotId", "Description", "Tags"):
        assert after[part] == before[part]
    shared = ec2.describe_snapshot_attribute(
        SnapshotId=snapshot, Attribute="createVolumePermission"
    )
    assert shared["CreateVolumePermissions"] == [{"UserId": "111122223333"}]
    again = client(own).run_instances(
        ImageId=image, MinCount=1, MaxCount=1, InstanceType="g4dn.xlarge"
    )["Instances"][0]["InstanceId"]
    wait_for(client(own), again, "running")
    assert invoke("lab.clean").returncode == 0
    assert not own.state.exists()


def test_killed_lab_comes_up_and_goes_down_again(invoke: Invoke, own: Lab) -> None:
    assert invoke("lab.up").returncode == 0
    launched(own, boots=False)
    os.kill(int(own.pid_file.read_text()), signal.SIGKILL)
    assert invoke("lab.up").returncode == 0
    ec2, instance = launched(own, boots=False)
    result = ec2.describe_instances()["Reservations"]
    assert [item["InstanceId"] for page in result for item in page["Instances"]] == [instance]
    mounts = on_this_machine(own)["mounts"]
    assert {mount.split()[0] for mount in mounts if mount.startswith("i-")} == {instance}
    os.kill(int(own.pid_file.read_text()), signal.SIGKILL)
    left = on_this_machine(own)
    assert left["mounts"]
    assert left["interfaces"]
    assert any("systemd" in command for command in left["processes"])
    done = invoke("lab.down")
    assert done.returncode == 0, done.stderr
    assert f"took down bridge {own.bridge}" in done.stdout
    assert on_this_machine(own) == nothing(own)
