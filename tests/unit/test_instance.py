"""The instance that is verified: its host keys come from its console, and it answers over SSH."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kiln.base.errors import KilnError
from kiln.base.processes import Stop
from kiln.cloud import instance
from kiln.cloud.network import Network

RUN = "20261124T000000Z-c0de"
ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9mUmRz7hCkZ0c7lW3v2l4mYbV5b1Zb6m2zD0Qd3nqS"
EC = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBK=="
BLOCK = (
    "-----BEGIN SSH HOST KEY KEYS-----\r\n{} root@ip-10-0-0-1\r\n{} \r\n"
    "-----END SSH HOST KEY KEYS-----\r\n"
)


def test_keys_of_the_last_boot_are_read() -> None:
    old = BLOCK.format("ssh-ed25519 AAAAold", "ssh-rsa AAAAold")
    text = f"[ 0.0] Linux\r\n{old}more\r\n[ 12.3] cloud-init[900]: {BLOCK.format(ED, EC)}login: "
    assert instance.keys_in_console(text) == [ED, EC]


@pytest.mark.parametrize(
    "text", ["", "login:", "-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 AAAA", ED]
)
def test_a_console_without_a_whole_block_has_none(text: str) -> None:
    assert instance.keys_in_console(text) == []


class Console:
    """An EC2 client whose console answers in turn; the last answer stays."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), []

    def get_console_output(self, **asked: Any) -> dict[str, str]:
        self.asked.append(asked)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "no network":
            raise EndpointConnectionError(endpoint_url="https://ec2.example")
        if answer.startswith("!"):
            raise ClientError({"Error": {"Code": answer[1:]}}, "GetConsoleOutput")
        return {"Output": answer}


class Clock:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(instance.time, "monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def wait(console: Console, clock: Clock, *, up: bool = True) -> tuple[list[str], list[str]]:
    """The keys, and what was said."""
    messages: list[str] = []
    stop = Stop()
    stop.sleep = clock.sleep  # type: ignore[method-assign]
    target: Any = SimpleNamespace(poll_seconds=2.0)
    stage: Any = SimpleNamespace(waits_for=messages.append)
    keys = instance.host_keys(
        console, "i-1", target, lambda: up, stage, messages.append, stop, timeout=600
    )
    return keys, messages


def test_keys_that_come_later_are_waited_for(clock: Clock) -> None:
    console = Console("!InvalidInstanceID.NotFound", "", "booting", BLOCK.format(ED, EC))
    keys, messages = wait(console, clock)
    assert keys == [ED, EC]
    assert messages == ["the host key of i-1 on its console"]
    assert all(asked == {"InstanceId": "i-1", "Latest": True} for asked in console.asked)


def test_a_network_that_fails_for_a_moment_ends_nothing(clock: Clock) -> None:
    assert wait(Console("no network", BLOCK.format(ED, EC)), clock)[0] == [ED, EC]


def test_an_instance_that_is_not_on_nitro_is_asked_for_what_was_posted(clock: Clock) -> None:
    console = Console("!UnsupportedOperation", BLOCK.format(ED, EC))
    assert wait(console, clock)[0] == [ED, EC]
    assert console.asked[-1] == {"InstanceId": "i-1"}


def test_a_console_that_never_shows_them_is_left_with_a_warning(clock: Clock) -> None:
    keys, messages = wait(Console("login:"), clock)
    assert keys == []
    assert instance.CONSOLE_PATIENCE <= clock.now < instance.CONSOLE_PATIENCE + 5
    assert messages[-1].startswith(
        "warning: the host key of i-1 is not known (its console does not"
    )


def test_who_may_not_read_the_console_does_not_wait(clock: Clock) -> None:
    keys, messages = wait(Console("!UnauthorizedOperation"), clock)
    assert (keys, clock.now) == ([], 0)
    assert "(GetConsoleOutput answered UnauthorizedOperation)" in messages[-1]


def test_an_instance_that_does_not_answer_at_all_is_not_blamed_on_its_key(clock: Clock) -> None:
    keys, messages = wait(Console(""), clock, up=False)
    assert (keys, messages) == ([], [])
    assert clock.now >= 600


@pytest.mark.parametrize(("keys", "strict"), [([ED, EC], "yes"), ([], "accept-new")])
def test_ssh_accepts_only_the_keys_of_the_console(
    keys: list[str], strict: str, tmp_path: Path
) -> None:
    with instance.connected("i-1", "192.0.2.1", "user", RUN, tmp_path, tmp_path / "key") as machine:
        instance._trust(machine, keys, "")
        text = machine.ssh_config.read_text()
        known = machine.ssh_config.with_name("known_hosts")
        assert f"StrictHostKeyChecking {strict}\n" in text
        assert f"UserKnownHostsFile {known}\n" in text
        # It is found by the instance's id, since its address changes when it is started again.
        assert "HostKeyAlias i-1\n" in text
        assert known.read_text() == "".join(f"i-1,192.0.2.1 {key}\n" for key in keys)


@pytest.mark.parametrize("text", ["abc", "", "-1", "1e9", "nan", "600s", "123456"])
def test_a_timeout_that_is_not_a_number_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_SSH_TIMEOUT", text)
    with pytest.raises(KilnError, match=r"KILN_SSH_TIMEOUT=.* is not a number of seconds") as error:
        instance.ssh_timeout()
    assert error.value.exit_status == 2


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        ("Host key verification failed.", "does not have the host key"),
        ("Permission denied (publickey).", "did cloud-init take the key"),
        ("no session of i-1 could be opened: StartSession answered X", "may you open sessions"),
    ],
)
def test_an_instance_that_ssh_refuses_is_told_by_what_ssh_says(answer: str, hint: str) -> None:
    assert hint in instance.ssh_hint(answer)


@pytest.mark.parametrize(
    ("way", "reason", "hint"),
    [
        ("private_ip", "port 22 is closed", "is this machine in that VPC"),
        ("session_manager", "its SSM agent has not registered", "AmazonSSMManagedInstanceCore"),
    ],
)
def test_an_instance_that_never_answers_is_told_by_the_way_to_it(
    way: str, reason: str, hint: str
) -> None:
    silent: Any = SimpleNamespace(instance_id="i-1", address="10.0.0.7")
    network = Network((None,), "vpc-1", way, ())
    with pytest.raises(KilnError, match=f"does not answer over SSH after 0 s: {reason}") as error:
        instance.wait_for_ssh(silent, network, 0.0, 0.0, Stop(), lambda: False)
    assert hint in str(error.value.hint)
