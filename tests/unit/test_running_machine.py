"""A machine that runs already, over one connection of ssh."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln.pipeline.running_machine import Running, connected

# Before the fixture puts another one on PATH.
SSH = str(shutil.which("ssh"))
RUNNING = Running("a machine", "ec2-user", "192.0.2.1")
RUN = f"20261124T000000Z-{os.getpid() % 65536:04x}"
# It leaves as the real one does, which answers `-O exit` before it removes its socket: here a
# thousand of them, so that whoever tidies up meets one that is just gone.
_SSH = """#!/bin/bash
folder=$(dirname "$2")
cp "$2" "{log}"
case "$*" in
*"-O exit"*) (rm -f "$folder"/socket.*) > /dev/null 2>&1 & ;;
*) cd "$folder" && seq -f socket.%g 1000 | xargs touch ;;
esac
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration that ssh was last given."""
    program, log = tmp_path / "bin" / "ssh", tmp_path / "config"
    program.parent.mkdir()
    program.write_text(_SSH.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return log


def test_a_connection_ends_while_sshs_master_still_removes_its_socket(
    config: Path, tmp_path: Path
) -> None:
    for _ in range(5):
        with connected(RUNNING, RUN, tmp_path, None) as machine:
            assert machine.ssh("true")[0] == 0
    assert config.exists()


def test_a_folder_that_a_killed_process_left_does_not_matter(config: Path, tmp_path: Path) -> None:
    left = Path(f"/tmp/kiln-{RUN}")
    left.mkdir(exist_ok=True)
    (left / "config").touch()
    with connected(RUNNING, RUN, tmp_path, None) as machine:
        assert machine.ssh("true")[0] == 0
    assert config.exists()


def test_another_machine_is_known_as_the_users_own_ssh_knows_it(
    config: Path, tmp_path: Path
) -> None:
    with connected(RUNNING, RUN, tmp_path, None) as machine:
        machine.ssh("true")
    assert "~/.ssh/known_hosts\n" in config.read_text()
    assert "Include ~/.ssh/config\n" in config.read_text()


@pytest.mark.parametrize(
    ("theirs", "counts"),
    [("", "accept-new"), ("Host *\n  StrictHostKeyChecking yes\n", "true")],
)
def test_a_new_host_key_is_accepted_unless_the_users_settings_say_otherwise(
    config: Path, tmp_path: Path, theirs: str, counts: str
) -> None:
    with connected(RUNNING, RUN, tmp_path, None) as machine:
        machine.ssh("true")
    (tmp_path / "theirs").write_text(theirs)
    text = config.read_text().replace("~/.ssh/config", str(tmp_path / "theirs"))
    (tmp_path / "ours").write_text(text)
    command = [SSH, "-G", "-F", str(tmp_path / "ours"), "gpu-7"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"stricthostkeychecking {counts}\n" in shown
