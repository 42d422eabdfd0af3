"""`lab.coverage`: what the lab does of each call is read from its code."""

from __future__ import annotations

import pytest

from lab.api import coverage
from tests.unit import commands


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return coverage.table()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("RunInstances", "real"),
        ("CreateImage", "real"),
        ("DescribeImages", "real"),
        ("StopInstances", "real"),
        ("CreateVpnGateway", "booked only"),
        ("EnableVolumeIO", "refused"),  # moto has it, and only says that it is not done
        ("CreateIpam", "refused"),
        ("logs:PutLogEvents", "real"),
        ("ssm:SendCommand", "real"),
        ("cloudwatch:PutDashboard", "booked only"),
        ("logs:StartLiveTail", "booked only"),
        ("cloudwatch:PutAnomalyDetector", "refused"),
        ("scheduler:CreateSchedule", "booked only"),
    ],
)
def test_a_call_is_of_its_kind(found: dict[str, str], call: str, kind: str) -> None:
    assert found[call] == kind


def test_the_task_prints_every_call_and_the_counts(found: dict[str, str]) -> None:
    done = commands.invoke("lab.coverage")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().splitlines()[-1] == coverage.counts(found)
    assert all(f"\n{name} " in f"\n{done.stdout}" for name in found)
