"""`./invoke verify --instance` and `--host`: what cannot be checked is refused with a message."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from kiln.base.errors import KilnError
from kiln.base.processes import Stop
from kiln.base.progress import Progress
from kiln.matrix.load import load_recipes
from kiln.pipeline import verify
from kiln.pipeline.verify import Running, at_host, reached
from tests.unit import commands


@pytest.mark.parametrize("host", ["203.0.113.7", "a@", "a b@c", "-o@c", "a@-oProxyCommand=x"])
def test_a_host_is_a_user_and_an_address(host: str) -> None:
    with pytest.raises(KilnError, match="is not user@address"):
        at_host(host)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "specify one of --ami, --instance and --host"),
        (("--ami", "ami-12345678", "--host", "a@b"), "specify one of"),
        (
            ("--ami", "ami-12345678", "--key", "x"),
            "--key and --exercise are for --instance and --host",
        ),
        (
            ("--ami", "ami-12345678", "--exercise"),
            "--key and --exercise are for --instance and --host",
        ),
        (
            ("--host", "a@b", "--instance-type", "g5.xlarge"),
            "--instance-type and --own-kernel are for --ami",
        ),
        (("--host", "a@b", "--key", "/nowhere"), "--key /nowhere: no such file"),
    ],
)
def test_flags_that_do_not_fit(flags: tuple[str, ...], says: str) -> None:
    done = commands.invoke("verify", *flags)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_that_does_not_answer_is_one_message() -> None:
    env = {**os.environ, "KILN_BUILD_DIR": "/nonexistent-is-not-written"}
    done = commands.invoke("verify", "--host", "nobody@127.0.0.1", "--no-install", env=env)
    assert done.returncode == 1
    assert "nobody@127.0.0.1 cannot be reached over SSH" in done.stderr


def test_ctrl_c_while_the_checks_run_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    machine = SimpleNamespace(
        ssh=lambda *_, **__: (0, "", ""), read_json=lambda path: load_recipes()[0].as_json()
    )

    def run_checks(*given: Any, stop: Stop, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        stop.check()

    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path))
    monkeypatch.setattr(verify, "reached", lambda *given: nullcontext(machine))
    monkeypatch.setattr(verify.checks, "expectations", lambda *given, **more: {})
    monkeypatch.setattr(verify.checks, "run_checks", run_checks)
    with pytest.raises(KilnError, match=r"admin@203\.0\.113\.7: interrupted") as refused:
        verify.verify_running(
            at_host("admin@203.0.113.7"),
            MagicMock(),
            Progress(),
            kind_of_machine=lambda machine: "lab",
            key=None,
            keyword=None,
            exercise=False,
            install=False,
        )
    assert refused.value.exit_status == 1
    said = capfd.readouterr().err
    assert "stopping the checks" in said
    assert "removing" not in said


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
        with reached(RUNNING, RUN, tmp_path, None) as machine:
            assert machine.ssh("true")[0] == 0
    assert config.exists()


def test_another_machine_is_known_as_the_users_own_ssh_knows_it(
    config: Path, tmp_path: Path
) -> None:
    with reached(RUNNING, RUN, tmp_path, None) as machine:
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
    with reached(RUNNING, RUN, tmp_path, None) as machine:
        machine.ssh("true")
    (tmp_path / "theirs").write_text(theirs)
    text = config.read_text().replace("~/.ssh/config", str(tmp_path / "theirs"))
    (tmp_path / "ours").write_text(text)
    command = [SSH, "-G", "-F", str(tmp_path / "ours"), "gpu-7"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"stricthostkeychecking {counts}\n" in shown
