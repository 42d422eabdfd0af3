"""`./invoke verify --instance` and `--host`: what cannot be checked is refused with a message."""

from __future__ import annotations

import os

import pytest

from kiln.base.errors import KilnError
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
        ((), "verify needs one of --ami, --instance, --host"),
        (("--ami", "ami-12345678", "--host", "a@b"), "verify needs one of"),
        (("--ami", "ami-12345678", "--key", "x"), "--key is for --instance and --host"),
        (("--host", "a@b", "--instance-type", "g5.xlarge"), "--instance-type is for --ami"),
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
