"""A row that is pinned to a package snapshot gives the same image again, an unpinned row does not.

Two parents stand in for AWS's on two days: the row takes the newest AMI of a name, and between two
builds a newer one appears, of a later release of Amazon Linux 2023.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import (
    copied,
    launching,
    users_environment,
    wait_for,
)

from devel.testbed import bare_checkout
from lab.daemon import control
from tests.unit import commands

pytestmark = pytest.mark.all
AL2023 = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64"
# Not the parent's release, and not the newest.
PINNED = "2023.11.20260511"
NEWEST = "2023.12.20260803"


@dataclass(frozen=True)
class World:
    """A user's home with two matrices of one row, pinned and not, and the checkout that bakes it:
    of its provisioners only those do something that have to do with the distribution's packages."""

    home: Path
    checkout: Path

    def environment(self, matrix: str) -> dict[str, str]:
        return users_environment(self.home) | {"KILN_MATRIX": str(self.home / f"{matrix}.yaml")}

    def run(self, *arguments: str, matrix: str = "pinned") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.checkout / "invoke", *arguments],
            env=self.environment(matrix),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def json(self, *arguments: str, matrix: str = "pinned") -> Any:
        done = self.run(*arguments, "--json", matrix=matrix)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def write_matrix(self, name: str, **row: str) -> None:
        matrix = yaml.safe_load((self.checkout / "amis.yaml").read_text())
        matrix["amis"] = [{"distro": "al2023", "stack": "lts", **row}]
        parent = {"owner": "self", "name": "parent-of-the-snapshot-test-*"}
        matrix["distros"] = {"al2023": {"parents": {"base": parent}}}
        (self.home / f"{name}.yaml").write_text(yaml.safe_dump(matrix, sort_keys=False))


@dataclass(frozen=True)
class History:
    """Records of builds, in the order in which they were made, and the AMI ids of the parents.

    `loose` is the plan of the build that was not pinned, before the newer parent was there.
    """

    pinned: dict[str, Any]
    loose: dict[str, Any]
    loose_later: dict[str, Any]
    pinned_again: dict[str, Any]
    parents: tuple[str, str]


@pytest.fixture(scope="module")
def world(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    checkout = bare_checkout(
        tmp_path_factory.mktemp("checkout"),
        "nvidia-repo",
        baked=("kernel", "package-snapshot", "version-info"),
        checked=("package-snapshot",),
    )
    made = World(tmp_path_factory.mktemp("snapshot"), checkout)
    made.write_matrix("pinned", package_snapshot=PINNED)
    made.write_matrix("loose")
    return made


def parent(day: int) -> str:
    """The name of the parent AMI of a day."""
    return f"parent-of-the-snapshot-test-{day}"


@pytest.fixture(scope="module")
def todays(client: Callable[[str], Any]) -> str:
    """AWS's AMI of today."""
    return str(client("ssm").get_parameter(Name=AL2023)["Parameter"]["Value"])


def brought_to(release: str, image: str, ec2: Any, key: tuple[str, Path]) -> str:
    """A parent AMI of the next day: this one with the packages of a release."""
    with launching(ec2, key, image) as launch:
        guest = launch(InstanceType="m5.large")
        done = guest.run(f"sudo dnf -q -y --releasever={release} upgrade")
        assert done.returncode == 0, done.stderr
        ec2.stop_instances(InstanceIds=[guest.id])
        wait_for(ec2, guest.id, "stopped")
        made = str(ec2.create_image(InstanceId=guest.id, Name=parent(2))["ImageId"])
        ec2.get_waiter("image_available").wait(ImageIds=[made], WaiterConfig={"Delay": 1})
    return made


@pytest.fixture(scope="module")
def history(world: World, todays: str, ec2: Any, key: tuple[str, Path]) -> History:
    first = copied(ec2, todays, parent(1))
    (pinned,) = world.json("build", "--all")
    (loose,) = world.json("build", "--all", "--dry-run", matrix="loose")
    second = brought_to(NEWEST, todays, ec2, key)
    (loose_later,) = world.json("build", "--all", matrix="loose")
    (again,) = world.json("rebuild", pinned["run_id"])
    return History(pinned, loose, loose_later, again, (first, second))


def difference(world: World, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    done = commands.invoke(
        "diff", a["run_id"], b["run_id"], "--json", env=world.environment("pinned")
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return {change["name"]: (change["old"], change["new"]) for change in answer["changes"]}


def test_rebuild_of_a_pinned_row_is_the_same(world: World, history: History) -> None:
    assert difference(world, history.pinned, history.pinned_again) == {}
    assert history.pinned_again["source_ami"]["ami_id"] == history.parents[0]
    assert history.pinned_again["recipe_digest"] == history.pinned["recipe_digest"]
    assert history.pinned_again["input_digest"] == history.pinned["input_digest"]
    assert history.pinned_again["recipe_from"].endswith(history.pinned["run_id"])


def test_unpinned_row_gets_newer_packages(world: World, history: History) -> None:
    changes = difference(world, history.pinned, history.loose_later)
    assert changes["patch"] == ("2.7.6-1.amzn2023", "2.7.7-1.amzn2023")
    assert history.loose_later["source_ami"]["ami_id"] == history.parents[1]
    assert history.loose_later["recipe_digest"] == history.loose["recipe_digest"]
    assert history.loose_later["input_digest"] != history.loose["input_digest"]


def test_the_packages_of_a_pinned_row_are_those_of_its_release(history: History) -> None:
    packages = {entry["name"]: entry["version"] for entry in history.pinned["versions"]["packages"]}
    assert (packages["patch"], packages["system-release"]) == ("2.7.6", PINNED)
    names = [check["name"] for check in history.pinned["checks"]["checks"]]
    assert "test_dnf_stays_at_the_release_that_a_row_is_pinned_to" in names


def test_verify_takes_the_input_digest_from_the_ami(
    lab: Any, world: World, history: History, ec2: Any
) -> None:
    ami = history.pinned["ami_id"]
    (image,) = ec2.describe_images(ImageIds=[ami])["Images"]
    tags = {tag["Key"]: tag["Value"] for tag in image["Tags"]}
    assert tags["kiln:input-digest"] == history.pinned["input_digest"]
    # It is known before the AMI boots, and this verification ends there.
    control.order_fault(lab, action="RunInstances", code="VcpuLimitExceeded")
    before = set(world.home.rglob("record.json"))
    done = world.run("verify", "--ami", ami)
    assert "VcpuLimitExceeded" in done.stderr
    (path,) = set(world.home.rglob("record.json")) - before
    record = json.loads(path.read_text())
    assert (record["kind"], record["ami_id"]) == ("verify", ami)
    assert record["input_digest"] == history.pinned["input_digest"]
