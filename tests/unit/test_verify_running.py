"""`./invoke verify --instance` and `--host`: what cannot be checked is refused with a message."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from kiln.base.errors import KilnError
from kiln.base.progress import Progress
from kiln.base.stopping import Stop
from kiln.matrix.load import load_recipes
from kiln.pipeline import verify_running
from kiln.pipeline.verify_running import of_host
from tests.unit import commands


@pytest.mark.parametrize("host", ["203.0.113.7", "a@", "a b@c", "-o@c", "a@-oProxyCommand=x"])
def test_a_host_is_a_user_and_an_address(host: str) -> None:
    with pytest.raises(KilnError, match="is not user@address"):
        of_host(host)


def test_a_host_is_taken_apart() -> None:
    running = of_host("ec2-user@203.0.113.7")
    assert (running.user, running.address) == ("ec2-user", "203.0.113.7")


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
    monkeypatch.setattr(verify_running, "connected", lambda *given: nullcontext(machine))
    monkeypatch.setattr(verify_running.ami_checks, "expectations", lambda *given, **more: {})
    monkeypatch.setattr(verify_running.ami_checks, "run_checks", run_checks)
    with pytest.raises(KilnError, match=r"admin@203\.0\.113\.7: interrupted") as refused:
        verify_running.verify_running(
            of_host("admin@203.0.113.7"),
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
