"""Each guest has a control group of its own, so that systemds do not remove each other's groups."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.machine import cgroups

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/sys/fs/cgroup", os.W_OK), reason="groups take root"
)


@pytest.fixture
def name() -> Iterator[str]:
    result = f"test-{uuid.uuid4().hex[:8]}"
    yield result
    cgroups.remove(result)


def groups_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def folders(name: str) -> list[Path]:
    """os.walk ignores groups of other guests that disappear in the meantime."""
    walk = os.walk("/sys/fs/cgroup")
    return [Path(top, folder) for top, below, _ in walk for folder in below if name in folder]


def test_command_runs_in_a_group_of_its_own(name):
    echo = ["/bin/sh", "-c", "echo $$; cat /proc/self/cgroup"]
    with subprocess.Popen([*cgroups.run_in(name), *echo], stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdout
        pid, *lines = ran.stdout.read().splitlines()
    assert int(pid) == ran.pid
    systemds = [line for line in lines if line.split(":")[1] in ("name=systemd", "")]
    assert systemds
    assert all(line.endswith(f"/kiln-guest-{name}") for line in systemds)


def test_a_group_is_removed_with_what_a_systemd_made_below_it(name):
    groups_of(*cgroups.run_in(name), "true")
    for group in folders(name):
        (group / "payload/system.slice").mkdir(parents=True)
    assert cgroups.remaining(name[:9]) == [name]
    cgroups.remove(name)
    assert folders(name) == []
    assert cgroups.remaining(name) == []
