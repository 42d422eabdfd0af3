"""What the unit tests share: what they would only compute again is kept.

No setting here changes what a program does, and a process that a test starts has none of it.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from kiln.cloud.aws_target import AwsTarget
from lab.api import botocore_data

# The modules that tests import are no garbage; searching them again and again took a twentieth of
# the whole run.
gc.set_threshold(100_000, 50, 50)
# moto makes a session for each test.
botocore_data.read_once()
# A shell ignores SIGINT for what it starts in the background, and so would the programs that the
# tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was collected is no garbage either; pytest searches it five times at its end."""
    gc.freeze()


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An account of moto's, in eu-central-1; a client of its EC2."""
    from moto import mock_aws  # as slow to import as all other modules of most tests

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    # moto's thousand public AMIs take most of a second a test.
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setattr(AwsTarget, "own_cidr", lambda target: "192.0.2.7/32")
    monkeypatch.setattr(AwsTarget, "own_cidr_towards", lambda target, block: f"10.0.0.9/32<{block}")
    with mock_aws():
        yield boto3.client("ec2", "eu-central-1")
