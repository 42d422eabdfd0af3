"""Whatever ends a build, nothing of it is left in EC2 and no private key on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, inventory, users_environment

from lab import control

BUILD = ("build", "--distro", "al2", "--driver", "510.47.03", "--target", "lab")
KINDS = {"instances", "key pairs", "security groups", "volumes"}


@dataclass(frozen=True)
class Going:
    """A build that is under way, in a process group of its own as in a user's terminal."""

    process: subprocess.Popen[str]
    home: Path

    def wait_for_log(self, text: str, timeout: float = 120) -> None:
        """Wait until Packer says so."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if any(text in log.read_text() for log in self.home.rglob("packer.log")):
                return
            assert self.process.poll() is None, self.end()
            time.sleep(0.05)
        raise AssertionError(f"packer did not say {text!r}")

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """Let nothing run on, however the test ended."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.end()

    def end(self) -> tuple[int, str]:
        """Wait until it is over: its exit code, all that it said."""
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out + err


def start_build(home: Path, *more: str, **environment: str) -> Going:
    process = subprocess.Popen(
        [str(ROOT / "invoke"), *BUILD, *more],
        cwd=ROOT,
        env=users_environment(home) | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Going(process, home)


@pytest.fixture
def going(lab: Any, tmp_path: Path, new: Callable[[], Any]) -> Iterator[Going]:
    """A build in the middle of its bake, with the home and build folder that `kiln` has."""
    one = start_build(tmp_path)
    try:
        one.wait_for_log("Instance ID")
        yield one
    finally:
        one.stop()


New = dict[str, set[str]]


def watch(ec2: Any) -> Callable[[], New]:
    """Call the result for what is in EC2 that was not there at this moment, by kind."""
    before = inventory(ec2)

    def new() -> New:
        now = {kind: found - before[kind] for kind, found in inventory(ec2).items()}
        return {kind: found for kind, found in now.items() if found}

    return new


@pytest.fixture
def new(ec2: Any) -> Callable[[], New]:
    """What is in EC2 that was not there before the test."""
    return watch(ec2)


def private_keys(home: Path) -> list[Path]:
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if b"PRIVATE KEY" in path.read_bytes()]


def not_named(made: New, text: str) -> set[str]:
    """What was made and goes unsaid in a text. (Volumes go with their instances.)"""
    ids = set().union(*(found for kind, found in made.items() if kind != "volumes"))
    return {one for one in ids if one not in text}


@dataclass(frozen=True)
class Failed:
    """A build that failed: how, and what is new on disk and in EC2 after it."""

    code: int
    said: str
    home: Path
    new: New


@pytest.fixture(scope="module")
def failed(
    lab: Any, ec2: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Failed]]:
    """Two builds side by side, since Packer asks for capacity eleven times, for most of a minute.

    One finds no capacity for its own instance type, the other's AMI never boots.
    """
    control.order_fault(
        lab,
        action="RunInstances",
        code="InsufficientInstanceCapacity",
        match={"InstanceType": "p4d.24xlarge"},
        times=50,
    )
    new = watch(ec2)
    waiting = start_build(tmp_path_factory.mktemp("full"), "--instance-type", "p4d.24xlarge")
    baking = None
    try:
        waiting.wait_for_log("Launching")
        baking = start_build(tmp_path_factory.mktemp("dark"), KILN_SSH_TIMEOUT="5")
        baking.wait_for_log("Creating AMI")
        control.order_fault(lab, action="boot", code="never")
        ends = {"no capacity": (waiting, waiting.end()), "no boot": (baking, baking.end())}
        left = new()
        yield {name: Failed(*end, one.home, left) for name, (one, end) in ends.items()}
    finally:
        waiting.stop()
        if baking:
            baking.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bake_leaves_nothing_and_says_what_it_removed(
    number: signal.Signals, going: Going, new: Callable[[], New]
) -> None:
    made = new()
    assert set(made) == KINDS
    assert private_keys(going.home)
    going.signal(number)
    code, said = going.end()
    assert code == 1, said
    assert "interrupted" in said
    assert not_named(made, said[said.index("cleaned up: ") :]) == set()
    assert "Traceback" not in said
    assert new() == {}
    assert private_keys(going.home) == []


def test_the_next_build_removes_what_a_killed_one_left(
    going: Going, new: Callable[[], New], lab: Any, kiln: Callable[..., Any]
) -> None:
    going.signal(signal.SIGKILL)
    going.end()
    left = new()
    assert set(left) == KINDS
    assert private_keys(going.home)
    (state,) = going.home.rglob("run.json")
    # An error that Packer does not try again after, so that the second build ends at once.
    control.order_fault(lab, action="RunInstances", code="VcpuLimitExceeded")
    done = kiln(*BUILD)
    assert done.returncode == 1, done.stderr
    assert "VcpuLimitExceeded" in done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "had crashed; removed " in line]
    assert f"run {state.parent.name} had crashed" in told
    assert not_named(left, told) == set()
    assert new() == {}
    assert private_keys(going.home) == []


def test_no_capacity_is_one_message_in_awss_words(failed: dict[str, Failed]) -> None:
    end = failed["no capacity"]
    assert end.code == 1, end.said
    assert end.said.count("error: ") == 1
    error = end.said[end.said.index("error: ") :]
    assert "InsufficientInstanceCapacity: We currently do not have sufficient p4d.24xlarge capac" in error  # fmt: skip  # noqa: E501
    assert "Traceback" not in end.said


def test_an_ami_that_never_boots_is_one_message(failed: dict[str, Failed]) -> None:
    end = failed["no boot"]
    assert end.code == 1, end.said
    assert end.said.count("error: ") == 1
    assert "does not answer over SSH after 5 s" in end.said
    assert "Traceback" not in end.said


def test_a_failed_build_leaves_nothing_in_ec2(failed: dict[str, Failed]) -> None:
    assert re.search("clean-up .*AMI ami-", failed["no boot"].said)
    assert [end.new for end in failed.values()] == [{}, {}]


def test_a_failed_build_leaves_no_private_key(failed: dict[str, Failed]) -> None:
    assert [private_keys(end.home) for end in failed.values()] == [[], []]
