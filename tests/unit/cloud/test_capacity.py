"""When EC2 has no capacity for a launch, the next type or subnet is tried, and each try is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import ClientError

from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.base.processes import Stop
from kiln.cloud import aws, instance, network
from kiln.cloud.network import Access, Launch, Network, Try
from kiln.cloud.target import Target

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
