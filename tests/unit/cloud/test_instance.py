"""The instance that is verified: its host keys come from its console, and it answers over SSH."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.base.processes import Stop
from kiln.cloud import aws, instance, network
from kiln.cloud.network import Access, Launch, Network, Try
from kiln.cloud.target import Target

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


def wait(console: Console, clock: Clock) -> tuple[list[str], list[str]]:
    """The keys, and what was said."""
    messages: list[str] = []
    stop = Stop()
    stop.sleep = clock.sleep  # type: ignore[method-assign]
    target: Any = SimpleNamespace(poll_seconds=2.0)
    stage: Any = SimpleNamespace(waits_for=messages.append)
    keys = instance.host_keys(
        console, "i-1", target, lambda: True, stage, messages.append, stop, timeout=600
    )
    return keys, messages


def test_late_keys_are_waited_for(clock: Clock) -> None:
    console = Console("!InvalidInstanceID.NotFound", "no network", "booting", BLOCK.format(ED, EC))
    keys, messages = wait(console, clock)
    assert keys == [ED, EC]
    assert messages == ["the host key of i-1 on its console"]
    assert all(asked == {"InstanceId": "i-1", "Latest": True} for asked in console.asked)


def test_instance_without_nitro_shows_posted_console(clock: Clock) -> None:
    console = Console("!UnsupportedOperation", BLOCK.format(ED, EC))
    assert wait(console, clock)[0] == [ED, EC]
    assert console.asked[-1] == {"InstanceId": "i-1"}


def test_missing_keys_are_a_warning(clock: Clock) -> None:
    keys, messages = wait(Console("login:"), clock)
    assert keys == []
    assert instance.CONSOLE_PATIENCE <= clock.now < instance.CONSOLE_PATIENCE + 5
    assert messages[-1].startswith(
        "warning: the host key of i-1 is not known (its console does not"
    )


def test_denied_console_is_not_waited_for(clock: Clock) -> None:
    keys, messages = wait(Console("!UnauthorizedOperation"), clock)
    assert (keys, clock.now) == ([], 0)
    assert "(GetConsoleOutput answered UnauthorizedOperation)" in messages[-1]


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


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "123456"])
def test_invalid_ssh_timeout_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_SSH_TIMEOUT", text)
    with pytest.raises(KilnError, match=r"KILN_SSH_TIMEOUT=.* is not a number of seconds") as error:
        instance.ssh_timeout()
    assert error.value.exit_status == 2


@pytest.mark.parametrize(
    ("way", "reason", "hint"),
    [
        ("private_ip", "port 22 is closed", "is this machine in that VPC"),
        ("session_manager", "its SSM agent has not registered", "AmazonSSMManagedInstanceCore"),
    ],
)
def test_unreachable_instance_hint_fits_the_way(way: str, reason: str, hint: str) -> None:
    silent: Any = SimpleNamespace(instance_id="i-1", address="10.0.0.7")
    network = Network((None,), "vpc-1", way, ())
    with pytest.raises(KilnError, match=f"does not answer over SSH after 0 s: {reason}") as error:
        instance.wait_for_ssh(silent, network, 0.0, 0.0, Stop(), lambda: False)
    assert hint in str(error.value.hint)


AWS = Target("a test", "us-east-1", account="123456789012")
A, B = "subnet-0aaaaaaa", "subnet-0bbbbbbb"


class Ec2:
    """Answers launches by their subnet: an error code, or nothing."""

    def __init__(self, **answers: str) -> None:
        self.answers = {name.replace("_", "-"): code for name, code in answers.items()}

    def run_instances(self, **asked: Any) -> Any:
        code = self.answers.get(asked["SubnetId"])
        if code:
            raise ClientError({"Error": {"Code": code, "Message": "not now"}}, "RunInstances")
        return {"Instances": [{"InstanceId": "i-0123456789abcdef0"}]}


class LaunchedError(Exception):
    """An instance was launched: the rest is not asked for."""


def tries(client: Ec2, monkeypatch: pytest.MonkeyPatch) -> list[Try]:
    """What is told of launching an AMI's fresh instance in two subnets; raises what that raises."""
    monkeypatch.setattr(aws, "ec2", lambda target: client)
    attempts: list[Try] = []

    def launched(instance_id: str) -> None:
        raise LaunchedError

    way = Network((A, B), "vpc-1", "public_ip", ())
    boot = instance.Boot(
        "ami-01234567",
        "p5.48xlarge",
        "ec2-user",
        "20261121T000000Z-aaaa",
        Path(),
        Access("key", Path("key"), ("sg-01234567",), way),
        launched=launched,
        tried=attempts.append,
    )
    try:
        with instance.booted(boot, AWS, MagicMock(), print, Stop()):
            pass
    except LaunchedError:
        return attempts
    except KilnError as error:
        raise KilnError(
            str([(attempt.subnet_id, attempt.answer) for attempt in attempts])
        ) from error
    raise AssertionError("nothing was launched")


@pytest.mark.parametrize("code", ["VcpuLimitExceeded", "ReservationCapacityExceeded"])
def test_quota_and_full_reservation_skip_the_type(code: str) -> None:
    left = network.launches(Account(), AWS, ["g5.xlarge", "g4dn.xlarge"], [A, B])
    types = ("g5.xlarge", "g4dn.xlarge")
    assert left == [Launch(kind, subnet) for kind in types for subnet in (A, B)]
    assert network.no_capacity(f"An error ({code})")
    assert network.launches_left(left, f"An error ({code})")[0] == Launch("g4dn.xlarge", A)
    assert network.launches_left(left, "InsufficientInstanceCapacity")[0] == Launch("g5.xlarge", B)


class Reserved:
    """A reservation for g5.xlarge in the zone of subnet B."""

    state = "active"

    def describe_capacity_reservations(self, **asked: Any) -> Any:
        assert asked == {"CapacityReservationIds": ["cr-01234567"]}
        known = {"CapacityReservationId": "cr-01234567", "InstanceType": "g5.xlarge"}
        zone = {"AvailabilityZone": "us-east-1b", "AvailabilityZoneId": "use1-az2"}
        return {"CapacityReservations": [{**known, **zone, "State": self.state}]}

    def describe_subnets(self, **asked: Any) -> Any:
        zones = {A: "use1-az1", B: "use1-az2", "subnet-0ddddddd": "use1-az2"}
        ids = asked.get("SubnetIds", ["subnet-0ddddddd"])
        return {"Subnets": [{"SubnetId": i, "AvailabilityZoneId": zones[i]} for i in ids]}


def reserved(*subnets: str | None, types: Sequence[str] = ("g5.xlarge", "g4dn.xlarge")) -> Any:
    return network.launches(Account(capacity_reservation_id="cr-01234567"), AWS, types, subnets)


def test_reservation_is_used_in_its_zone_by_its_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aws, "ec2", lambda target: Reserved())
    assert reserved(A, B) == [
        Launch("g5.xlarge", B, "cr-01234567"),
        Launch("g4dn.xlarge", A),
        Launch("g4dn.xlarge", B),
    ]
    assert reserved(A, types=["g4dn.xlarge"]) == [Launch("g4dn.xlarge", A)]
    # Without a subnet EC2 would take one of any zone.
    assert reserved(None)[0] == Launch("g5.xlarge", "subnet-0ddddddd", "cr-01234567")


def test_unusable_reservation_fails_before_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Reserved()
    monkeypatch.setattr(aws, "ec2", lambda target: client)
    with pytest.raises(KilnError, match=f"is in us-east-1b .*is: {A} .use1-az1") as refused:
        reserved(A)
    assert refused.value.exit_status == 1
    client.state = "expired"
    with pytest.raises(KilnError, match="cr-01234567 is not an active capacity reservation"):
        reserved(A, B)


def test_next_subnet_is_tried_without_capacity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = tries(Ec2(subnet_0aaaaaaa="InsufficientInstanceCapacity"), monkeypatch)
    assert (first.subnet_id, second.subnet_id, second.answer) == (A, B, "")
    assert (first.stage, first.market) == ("verify", "on-demand")
    assert "InsufficientInstanceCapacity" in first.answer


@pytest.mark.parametrize(
    ("code", "asked"), [("VcpuLimitExceeded", [A]), ("UnauthorizedOperation", [])]
)
def test_other_launch_error_ends_the_tries(
    code: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KilnError) as ended:
        tries(Ec2(subnet_0aaaaaaa=code), monkeypatch)
    assert str(ended.value).count("subnet-") == len(asked)
