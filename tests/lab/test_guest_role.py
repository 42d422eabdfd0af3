"""An instance with a role: its credentials in the guest.

Nothing is set in the guest but what EC2 sets, and its programs ask AWS's own host names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from conftest import Guest, launching
from fleet_guests import MANAGED, role

IMDS = "http://169.254.169.254/latest"


@pytest.fixture(scope="module")
def profile(client: Callable[[str], Any]) -> Iterator[str]:
    """An instance profile; its role, of the same name, may register with Systems Manager."""
    with role(client, MANAGED) as name:
        yield name


@pytest.fixture(scope="module")
def guest(ec2: Any, key: tuple[str, Path], source_ami: str, profile: str) -> Iterator[Guest]:
    """A guest with that profile, shared by the tests."""
    with launching(ec2, key, source_ami) as launch:
        yield launch(IamInstanceProfile={"Name": profile})


def imds(guest: Guest, path: str) -> str:
    """What the guest's IMDS answers, with a token; "" for a 404."""
    header = "X-aws-ec2-metadata-token"
    token = f"$(curl -sX PUT {IMDS}/api/token -H '{header}-ttl-seconds: 60')"
    return guest.run(f'curl -sf -H "{header}: {token}" {IMDS}/meta-data/{path}').stdout


def ask(guest: Guest, service: str, query: str, token: str = "", key: str = "any") -> str:
    """What AWS's own host answers to a call of a program in the guest."""
    scope = f"{key}/20260101/us-east-1/{service}/aws4_request"
    headers = f"-H 'Authorization: AWS4-HMAC-SHA256 Credential={scope}, Signature=none'"
    if token:
        headers += f" -H 'X-Amz-Security-Token: {token}'"
    url = f"https://{service}.us-east-1.amazonaws.com/?{query}"
    return guest.run(f"curl -s {headers} '{url}'").stdout


def test_program_in_a_guest_is_the_instances_role(guest: Guest, profile: str) -> None:
    assert imds(guest, "iam/") == "info\nsecurity-credentials/"
    assert imds(guest, "iam/security-credentials/") == profile
    arn = json.loads(imds(guest, "iam/info"))["InstanceProfileArn"]
    assert arn.endswith(f":instance-profile/{profile}")
    key = json.loads(imds(guest, f"iam/security-credentials/{profile}"))
    assert (key["Code"], key["Type"]) == ("Success", "AWS-HMAC")
    query = "Action=GetCallerIdentity&Version=2011-06-15"
    asked = ask(guest, "sts", query, key["Token"], key["AccessKeyId"])
    assert f":assumed-role/{profile}/{guest.id}</Arn>" in asked


def test_guest_makes_no_lab_call_and_none_without_a_token(guest: Guest) -> None:
    url = "https://ec2.us-east-1.amazonaws.com/_lab/down"
    assert "not for guests" in guest.run(f"curl -s -d '{{}}' {url}").stdout
    query = "Action=DescribeInstances&Version=2016-11-15"
    for token in ("", "another"):
        assert "<Code>AuthFailure</Code>" in ask(guest, "ec2", query, token)


def test_unknown_profile_is_refused_at_launch(launch) -> None:
    with pytest.raises(ClientError, match="Invalid IAM Instance Profile name") as refused:
        launch(IamInstanceProfile={"Name": "nobody"})
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
