"""The credentials of a role: the lab takes their token until they expire; renewed before."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

from lab.moto import role_credentials
from lab.moto.role_sessions import LIFETIME, RENEWED_BEFORE, is_valid

NOW = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
ACCOUNT = "123456789012"


PRINCIPAL = {"Service": "ec2.amazonaws.com"}
STATEMENT = {"Effect": "Allow", "Principal": PRINCIPAL, "Action": "sts:AssumeRole"}
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]})


def instance(*roles: str, number: str) -> Any:
    found = [
        SimpleNamespace(
            name=name,
            arn=f"arn:aws:iam::{ACCOUNT}:role/path/{name}",
            assume_role_policy_document=TRUST,
        )
        for name in roles
    ]
    profile = SimpleNamespace(
        arn=f"arn:aws:iam::{ACCOUNT}:instance-profile/p", id="AIPA1", roles=found
    )
    associations = {number: SimpleNamespace(iam_instance_profile=profile)}
    backend = SimpleNamespace(iam_instance_profile_associations=associations, partition="aws")
    return SimpleNamespace(
        id=number, owner_id=ACCOUNT, region_name="us-east-1", ec2_backend=backend
    )


def document(of: Any, now: datetime) -> dict[str, str]:
    (text,) = role_credentials.answers(of, now)["iam"]["security-credentials"].values()
    return json.loads(text)


def test_a_role_token_is_valid_until_it_expires() -> None:
    key = document(instance("worker", number="i-1"), NOW)
    assert key["LastUpdated"] == "2026-11-23T12:00:00Z"
    assert key["Expiration"] == "2026-11-23T18:00:00Z"
    assert is_valid(key["Token"], NOW)
    assert not is_valid(key["Token"], NOW + LIFETIME)
    assert not is_valid(key["Token"] + "x", NOW)
    assert not is_valid("", NOW)


def test_the_key_stays_the_same_and_is_renewed_before_it_expires() -> None:
    guest = instance("worker", number="i-2")
    first = document(guest, NOW)
    late = NOW + LIFETIME - RENEWED_BEFORE
    assert document(guest, late) == first
    second = document(guest, late + timedelta(seconds=1))
    assert second["AccessKeyId"] != first["AccessKeyId"]
    assert second["Expiration"] > first["Expiration"]
    assert is_valid(first["Token"], late), "the old key is valid until it expires"
