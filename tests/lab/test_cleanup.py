"""Whatever ends a build, nothing of it is left in EC2 and no private key on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import AL2, PRIVATE_KEY, copied, inventory, users_environment

from devel.testbed import bare_checkout, processes_of
from kiln.base import tags
from kiln.base.errors import KilnError
from kiln.matrix import load
from kiln.packer.render import recipe_digest
from lab.daemon import control
from tests.unit import commands

BUILD = ("build", "--distro", "al2", "--driver", "510.47.03", "--target", "lab")
KINDS = {"instances", "key pairs", "security groups", "volumes"}
BAKED = {"amis", "snapshots"}
# Another type for the instance that is to stay dark, so that it alone does.
DARK = "g5.xlarge"


@dataclass(frozen=True)
class Going:
    """A build that is under way, in a process group of its own as in a user's terminal."""

    process: commands.Call | commands.Program
    home: Path

    def wait_for_log(self, text: str) -> None:
        """Wait until Packer says so."""
        self.wait(lambda: any(text in log.read_text() for log in self.files("packer.log")), text)

    def wait_for_boot(self, ec2: Any, instance_type: str) -> None:
        """Wait until the AMI is booting."""
        mine = [
            {"Name": "tag:Name", "Values": ["kiln-verify-*"]},
            {"Name": "instance-type", "Values": [instance_type]},
        ]
        self.wait(lambda: bool(ec2.describe_instances(Filters=mine)["Reservations"]), "boot")

    def wait_for_checks(self) -> None:
        """Wait until the checks run."""
        self.wait(lambda: bool(self.files("expect.json")), "checks")

    def files(self, name: str) -> list[Path]:
        """The files of that name. os.walk does not mind folders that go away meanwhile."""
        walk = os.walk(self.home)
        return [Path(folder, name) for folder, _, names in walk if name in names]

    def wait(self, happened: Callable[[], bool], what: str, timeout: float = 600) -> None:
        deadline = time.monotonic() + timeout
        while not happened():
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
            time.sleep(0.2)

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """Let nothing run on, however the test ended."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
            self.end()

    def end(self) -> tuple[int, str]:
        """Wait until it is over: its exit code, all that it said."""
        done = self.process.end()
        return done.returncode, done.stdout + done.stderr


def start(home: Path, *arguments: str, **environment: str) -> Going:
    return Going(commands.start(*arguments, env=users_environment(home) | environment), home)


def start_in(checkout: Path, home: Path, *arguments: str) -> Going:
    """The same in another checkout."""
    return Going(commands.Program(checkout, arguments, users_environment(home)), home)


@pytest.fixture
def going(lab: Any, tmp_path: Path, new: Callable[[], Any]) -> Iterator[Going]:
    """A build whose Packer waits for the SSH of an instance that boots nothing: a boot costs more
    than all else of the test."""
    control.order_fault(lab, action="boot", code="never")
    build = start(tmp_path, *BUILD)
    try:
        build.wait_for_log("Instance ID")
        # EC2 does not show a new instance at once, nor does the lab.
        build.wait(lambda: "instances" in new(), "EC2 to show the instance")
        yield build
    finally:
        build.stop()


New = dict[str, set[str]]


def watch(ec2: Any) -> Callable[[], New]:
    """Call the result for what is in EC2 that was not there at this moment, by kind."""
    before = inventory(ec2)

    def new() -> New:
        now = {kind: found - before[kind] for kind, found in inventory(ec2).items()}
        return {kind: found for kind, found in now.items() if found}

    return new


def watch_gone(ec2: Any, made: New) -> New:
    """What was made and is not there any more, by kind."""
    now = inventory(ec2)
    return {kind: found - now[kind] for kind, found in made.items()}


@pytest.fixture
def new(ec2: Any) -> Callable[[], New]:
    """What is in EC2 that was not there before the test."""
    return watch(ec2)


def private_keys(home: Path) -> list[Path]:
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if PRIVATE_KEY.search(path.read_bytes())]


def not_named(made: New, text: str) -> set[str]:
    """The ids that go unsaid in a text. (Volumes go with their instances.)"""
    ids = set().union(*(found for kind, found in made.items() if kind != "volumes"))
    return {instance_id for instance_id in ids if instance_id not in text}


@pytest.fixture(scope="module")
def image(lab: Any, ec2: Any, source_ami: str) -> str:
    """An AMI that says it is one of ours: enough to be booted and checked."""
    made = copied(ec2, source_ami, f"{AL2}-{time.time()}")
    ec2.create_tags(Resources=[made], Tags=recipe_tags(AL2))
    return made


def recipe_tags(name: str) -> list[dict[str, str]]:
    """The tags by which `verify` knows what an AMI was baked from."""
    recipe = next(recipe for recipe in load.load_recipes() if recipe.name == name)
    return [
        {"Key": tags.RECIPE, "Value": name},
        {"Key": tags.RECIPE_DIGEST, "Value": recipe_digest(recipe)},
    ]


@dataclass(frozen=True)
class Ended:
    """A run that did not get to its end: how it was ended, and what it had made until then."""

    code: int
    output: str
    home: Path
    made: New


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_checkout(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def ended(
    lab: Any, ec2: Any, bare: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Ended]]:
    """Two builds that come as far as an AMI, side by side: baking takes the time here.

    One is asked to stop while its checks run, the other killed while its AMI boots.
    """
    control.order_fault(lab, action="boot", code="never", match={"InstanceType": DARK})
    new = watch(ec2)
    checked = start_in(bare, tmp_path_factory.mktemp("checked"), *BUILD)
    home = tmp_path_factory.mktemp("dark")
    dark = start_in(bare, home, *BUILD, "--verify-instance-type", DARK)
    try:
        # The one's checks may be over before the other one boots, and that boot lasts.
        checked.wait_for_checks()
        checked.signal(signal.SIGSTOP)
        dark.wait_for_boot(ec2, DARK)
        made = new()
        checked.signal(signal.SIGTERM)
        checked.signal(signal.SIGCONT)
        dark.signal(signal.SIGKILL)
        ends = {"in its checks": checked, "booting": dark}
        yield {name: Ended(*end.end(), end.home, made) for name, end in ends.items()}
    finally:
        checked.stop()
        dark.stop()


def test_interrupted_bake_leaves_nothing_and_names_it(
    going: Going, new: Callable[[], New], lab: Any
) -> None:
    """A second Ctrl-C does not cut the clean-up short."""
    made = new()
    assert set(made) == KINDS
    assert private_keys(going.home)
    with pytest.raises(KilnError, match=f"is in use: run .* of {AL2}, process"):
        control.down(lab)
    for _ in range(2):
        going.signal(signal.SIGINT)
        time.sleep(0.5)
    code, output = going.end()
    assert code == 1, output
    assert "interrupted" in output
    assert not_named(made, output[output.index("cleaned up: ") :]) == set()
    assert "still stopping: not waiting any longer" in output
    assert "Traceback" not in output
    assert new() == {}
    assert private_keys(going.home) == []


@pytest.mark.all
def test_failed_bake_keeps_its_instance_until_sweep(
    bare: Path, lab: Any, new: Callable[[], New], tmp_path: Path
) -> None:
    (recipe,) = (recipe for recipe in load.load_recipes() if recipe.name == AL2)
    script = bare / "provisioners" / f"{recipe.components[0]}.sh"
    right = script.read_text()
    script.write_text(f"{right}touch /opt/reached\nexit 3\n")
    code, output = start_in(bare, tmp_path, *BUILD, "--on-error", "keep").end()
    script.write_text(right)
    assert code == 1
    assert f"packer build failed in {recipe.components[0]}" in output
    assert set(new()) == {"instances", "security groups", "volumes"}
    assert not_named(new(), output) == set()
    ssh = shlex.split(next(line for line in output.splitlines() if "ssh -i" in line))
    there = [*ssh, "-o", "StrictHostKeyChecking=accept-new", "ls /opt/reached"]
    assert subprocess.run(there, check=False).returncode == 0
    (sweep,) = re.findall(r"\./invoke (sweep --run .*)", output)
    code, output = start_in(bare, tmp_path, *shlex.split(sweep)).end()
    assert code == 0, output
    assert new() == {}
    assert not list(tmp_path.rglob("run.json"))
    assert private_keys(tmp_path) == []


def test_next_run_removes_what_clean_up_had_to_leave(
    lab: Any, new: Callable[[], New], image: str, kiln: Callable[..., Any], tmp_path: Path
) -> None:
    verify = ("verify", "--ami", image, "--target", "lab")
    control.order_fault(lab, action="DeleteSecurityGroup", code="UnauthorizedOperation")
    control.order_fault(lab, action="boot", code="never")
    done = kiln(*verify, KILN_SSH_TIMEOUT="1")
    assert done.returncode == 1, done.stderr
    assert "does not answer over SSH after 1 s" in done.stderr
    assert (done.stderr.count("error: "), "Traceback" in done.stderr) == (1, False), done.stderr
    assert private_keys(tmp_path) == []
    left = new()
    assert set(left) == {"security groups"}
    (group,) = left["security groups"]
    assert "DeleteSecurityGroup answered UnauthorizedOperation" in done.stderr
    assert f"left: security group {group}\n" in done.stderr, done.stderr
    (record,) = (json.loads(path.read_text()) for path in tmp_path.rglob("record.json"))
    assert record["left"] == [f"security group {group}"]
    control.order_fault(lab, action="RunInstances", code="VcpuLimitExceeded")
    again = kiln(*verify)
    assert f"had not cleaned up; removed security group {group}\n" in again.stderr
    assert new() == {}


def test_build_interrupted_in_checks_removes_its_ami(ended: dict[str, Ended], ec2: Any) -> None:
    end = ended["in its checks"]
    assert set(end.made) == KINDS | BAKED
    assert end.code == 1, end.output
    removal = end.output[end.output.index("cleaned up: ") :]
    gone = watch_gone(ec2, end.made)
    # The other one's are still there: it was killed.
    assert {kind: len(found) for kind, found in gone.items()} == dict.fromkeys(KINDS | BAKED, 1)
    assert not_named(gone, removal) == set()
    assert private_keys(end.home) == []
    (record,) = (json.loads(path.read_text()) for path in end.home.rglob("record.json"))
    assert processes_of(record["run_id"]) == []


def test_next_run_removes_the_ami_of_a_killed_build(
    ended: dict[str, Ended], lab: Any, ec2: Any, kiln: Callable[..., Any]
) -> None:
    end = ended["booting"]
    control.order_fault(lab, action="RunInstances", code="VcpuLimitExceeded")
    done = kiln(*BUILD, KILN_BUILD_DIR=str(end.home / "build"))
    assert done.returncode == 1, done.stderr
    (line_of_removal,) = [
        line for line in done.stderr.splitlines() if "had not cleaned up; removed " in line
    ]
    kinds = ("instance", "AMI", "snapshot", "key pair", "security group")
    assert all(f"{kind} " in line_of_removal for kind in kinds)
    gone = watch_gone(ec2, end.made)
    assert gone == end.made
    assert private_keys(end.home) == []
