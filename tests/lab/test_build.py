"""`./invoke build --distro al2 --driver 510.47.03` in the lab: a build and all its results.

Then `verify`, which finds the same AMI good on another instance type and a broken one bad.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import AL2, PRIVATE_KEY, ROOT, Finished, Guest, inventory, launching, wait_for

from tests import surroundings
from tests.unit import shown

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
COMMIT = r"[0-9a-f]{40}(-dirty)?"


@pytest.fixture(scope="module")
def image(built: Finished, ec2: Any) -> dict[str, Any]:
    return dict(ec2.describe_images(ImageIds=[built.record["ami_id"]])["Images"][0])


def tags(image: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in image["Tags"]}


def test_the_first_line_says_where_and_why(built: Finished) -> None:
    assert built.done.stderr.splitlines()[0] == (
        "target: lab on this machine (no AWS credentials found); nothing is created in AWS"
    )


def test_forced_colors_reach_no_record_log_or_report(built: Finished) -> None:
    assert surroundings.ODD["FORCE_COLOR"]
    files = [path for path in built.folder.rglob("*") if path.is_file()]
    assert built.folder / "checks.log" in files
    assert [path for path in files if b"\x1b[" in path.read_bytes()] == []


def test_a_pipe_gets_one_line_per_stage_and_no_control_codes(built: Finished) -> None:
    # On a busy machine a stage also says every 30 s what it waits for.
    lines = [
        line
        for line in built.done.stderr.splitlines()[1:]
        if not re.match(r" {7}waiting for .*: \d+ s", line)
    ]
    assert all(re.match(r"ok     \S.{27} +\d+\.\d s", line) for line in lines), lines
    assert [line[7:35].strip() for line in lines] == [
        "lab",
        "parse the scripts",
        "key pair, security group",
        "packer build",
        "boot the AMI",
        "checks",
        "clean-up",
    ]
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", built.done.stdout + built.done.stderr)


def test_the_ami_carries_what_it_is_as_tags(built: Finished, image: dict[str, Any]) -> None:
    result = tags(image)
    record = built.record
    assert re.fullmatch(f"pass {TIME} {COMMIT}", result.pop("kiln:verified"))
    assert result == {
        "Name": f"{AL2}-{record['run_id']}",
        "kiln:arch": "x86_64",
        "kiln:cuda": "11.6.2",
        "kiln:distro": "al2",
        "kiln:driver": "510.47.03",
        "kiln:efa": "1.34.0",
        "kiln:flavor": "base",
        "kiln:git-commit": record["git_commit"],
        "kiln:kernel-module": "proprietary",
        "kiln:nccl": "2.12.7",
        "kiln:input-digest": record["input_digest"],
        "kiln:recipe": AL2,
        "kiln:recipe-digest": record["recipe_digest"],
        "kiln:run-id": record["run_id"],
        "kiln:source-ami": record["source_ami"]["ami_id"],
        "kiln:target": "lab",
    }


def test_ami_requires_imdsv2_and_is_encrypted(image: dict[str, Any]) -> None:
    assert image["ImdsSupport"] == "v2.0"
    assert [device["Ebs"]["Encrypted"] for device in image["BlockDeviceMappings"]] == [True]


def test_its_record_is_complete(built: Finished, source_ami: str) -> None:
    record = built.record
    assert record["schema"] == 2
    assert (record["kind"], record["status"], record["target"]) == ("build", "verified", "lab")
    assert record["recipe"]["name"] == AL2
    assert re.fullmatch("[0-9a-f]{64}", record["recipe_digest"])
    assert record["source_ami"]["ami_id"] == source_ami
    assert record["source_ami"]["found_by"].startswith("ssm:/aws/service/ami-amazon-linux-latest/")
    assert record["amis"] == {"us-east-1": record["ami_id"]}
    # Packer 1.7 and newer loads a plugin, whose version counts too.
    compiled_in = r"Packer 1\.[0-6]\.\d+ \(.*/packer\)"
    loaded = r"Packer \d+\.\d+\.\d+ \(.*/packer[^/]*\), plugin amazon \d+\.\d+\.\d+"
    assert re.fullmatch(f"{compiled_in}|{loaded}", record["packer"])
    assert re.fullmatch(COMMIT, record["git_commit"])
    assert re.fullmatch(TIME, record["started"])
    assert record["started"] < record["finished"]
    lines = built.done.stderr.splitlines()
    stages = [line[7:35].strip() for line in lines if line.startswith("ok ")]
    assert list(record["seconds"]) == stages
    assert all(seconds >= 0 for seconds in record["seconds"].values())


def test_its_record_holds_what_was_found_on_the_machine(built: Finished) -> None:
    versions = built.record["versions"]
    components = versions["components"]
    assert components["nvidia-driver"]["version"] == "510.47.03"
    assert set(built.record["recipe"]["components"]) >= set(components)
    names = {package["name"] for package in versions["packages"]}
    assert {"kernel", "amazon-cloudwatch-agent", "nvidia-container-toolkit"} <= names


def test_its_record_holds_every_check_and_why_some_were_skipped(built: Finished) -> None:
    checks = built.record["checks"]
    for outcome in ("passed", "failed", "skipped"):
        assert checks[outcome] == sum(check["outcome"] == outcome for check in checks["checks"])
    assert checks["passed"] > 50
    assert [check for check in checks["checks"] if check["outcome"] == "skipped" and not check["message"]] == []  # fmt: skip  # noqa: E501
    files = {check["file"] for check in checks["checks"] if check["outcome"] == "passed"}
    assert {"test_nvidia_driver", "test_cuda", "test_nccl", "test_hygiene", "test_xid_event"} <= files  # fmt: skip  # noqa: E501


def test_nothing_but_the_ami_is_left(built: Finished, image: dict[str, Any]) -> None:
    new = {kind: result - built.before[kind] for kind, result in built.after.items()}
    assert new.pop("amis") == {built.record["ami_id"]}
    assert new.pop("snapshots") == {
        device["Ebs"]["SnapshotId"] for device in image["BlockDeviceMappings"]
    }
    assert new == {kind: set() for kind in new}


def test_no_private_key_is_left_on_this_machine(built: Finished) -> None:
    files = [path for path in built.home.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if PRIVATE_KEY.search(path.read_bytes())] == []
    assert not (built.folder / "ssh").exists()
    assert not (built.folder / "run.json").exists()


def test_list_shows_that_it_is_verified(built: Finished, kiln: Callable[..., Any]) -> None:
    done = kiln("list", "--json", KILN_BUILD_DIR=str(built.home / "build"))
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows[AL2]["last_build"]["status"] == "verified"
    assert rows[AL2]["last_build"]["ami_id"] == built.record["ami_id"]


@pytest.mark.all
def test_verify_finds_it_good_on_another_instance_type(
    built: Finished, ec2: Any, kiln: Callable[..., Any]
) -> None:
    before = inventory(ec2)
    ami = built.record["ami_id"]
    done = kiln("verify", "--ami", ami, "--instance-type", "p4d.24xlarge", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert (record["kind"], record["status"]) == ("verify", "verified")
    assert record["verify_instance_type"] == "p4d.24xlarge"
    outcomes = {(check["file"], check["outcome"]) for check in record["checks"]["checks"]}
    # A g4dn.xlarge has no NVSwitch.
    assert ("test_nvidia_fabricmanager", "passed") in outcomes
    image = ec2.describe_images(ImageIds=[ami])["Images"][0]
    assert tags(image)["kiln:verified"].startswith("pass ")
    assert inventory(ec2) == before


@pytest.fixture(scope="module")
def guest(built: Finished, ec2: Any, key: Any, source_ami: str) -> Iterator[Guest]:
    """A machine of the AMI, which one test looks at and the next breaks."""
    with launching(ec2, key, source_ami) as launch:
        yield launch(built.record["ami_id"])


def test_verify_of_running_machine_changes_nothing(
    built: Finished, guest: Guest, kiln: Callable[..., Any]
) -> None:
    booted = "until systemctl is-system-running | grep -qE 'running|degraded'; do sleep 0.5; done"
    # This guest's programs write to a file in the place of the kernel log.
    own_log = "sudo touch /run/kmsg && sudo mount --bind /run/kmsg /dev/kmsg && touch /tmp/before"
    assert guest.run(f"{booted}; {own_log}").returncode == 0
    verify = ("verify", "--instance", guest.id, "--key", str(guest.key), "--json")
    done = kiln(*verify, PYTEST_ADDOPTS="-k is_enabled", PYTHONOPTIMIZE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert record["ami_id"] == built.record["ami_id"]
    assert (record["recipe"]["name"], record["verify_instance_type"]) == (AL2, "g4dn.xlarge")
    assert record["checks"]["passed"] == built.record["checks"]["passed"] - 5
    assert "run only with --exercise" in done.stderr
    # The guest's own programs go on: agents write logs, gpu-xid its position, rpm its locks.
    but = "! -path '/var/log/*' ! -path '*/logs/*' ! -path '/var/lib/gpu-xid/*'"
    but += " ! -name rpmdb.sqlite-shm"
    changed = f"sudo find / -xdev -type f -newer /tmp/before {but}"
    assert guest.run(f"cat /run/kmsg; {changed}").stdout == ""
    kiln(*verify, "--exercise", "-k", "xid")
    assert "NVRM: Xid" in guest.run("cat /run/kmsg").stdout


def test_verify_finds_a_broken_one_bad(guest: Guest, kiln: Callable[..., Any]) -> None:
    of_guest = ("verify", "--key", str(guest.key), "-k", "nvidia_smi or tuning", "--json")
    assert guest.run("sudo rm /usr/bin/nvidia-smi && sync").returncode == 0
    done = kiln(*of_guest, "--host", f"{guest.user}@{guest.address}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["checks"]["failed"] > 0
    assert f"says it is {AL2}, on g4dn.xlarge" in done.stderr


@pytest.mark.all
def test_verify_marks_the_ami_of_a_broken_one(
    built: Finished, ec2: Any, guest: Guest, kiln: Callable[..., Any]
) -> None:
    good = built.record["ami_id"]
    assert guest.run("sudo rm -f /usr/bin/nvidia-smi && sync").returncode == 0
    ec2.stop_instances(InstanceIds=[guest.id])
    wait_for(ec2, guest.id, "stopped")
    bad = ec2.create_image(InstanceId=guest.id, Name=f"broken-{time.time()}")["ImageId"]
    ec2.get_waiter("image_available").wait(ImageIds=[bad], WaiterConfig={"Delay": 1})
    kept = tags(ec2.describe_images(ImageIds=[good])["Images"][0])
    ec2.create_tags(
        Resources=[bad], Tags=[{"Key": key, "Value": value} for key, value in kept.items()]
    )
    # As a Spot instance, which cannot be stopped and started.
    done = kiln("verify", "--ami", bad, "--spot")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{bad}  failed" in done.stdout
    assert "failed: test_nvidia_driver::" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    image = ec2.describe_images(ImageIds=[bad])["Images"][0]
    assert re.fullmatch(f"fail {TIME} {COMMIT}", tags(image)["kiln:verified"])
    assert "kiln:verified" in kept
    assert kept["kiln:verified"].startswith("pass ")


def test_it_prints_what_getting_started_shows(built: Finished) -> None:
    page = shown.blocks((ROOT / "docs" / "first-image.md").read_text())
    wanted = page["./invoke build --distro al2 --driver 510.47.03"]
    assert shown.difference(wanted, built.done.stderr + built.done.stdout) == ""


def test_getting_started_and_readme_count_todays_checks(built: Finished) -> None:
    counts = re.compile(r"\d+ passed, \d+ failed, \d+ skipped")
    page = (ROOT / "docs" / "first-image.md").read_text()
    # README has its picture of it, with the number in words: tests/unit/test_getting_started.py.
    assert set(counts.findall(page)) == set(counts.findall(built.done.stdout)), (
        "bring the block in docs/first-image.md up to date, then: "
        "python docs/images/terminal.py '$ COMMAND' <BLOCK >docs/images/build.svg"
    )
