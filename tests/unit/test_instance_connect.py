"""EC2 Instance Connect in the lab: a key is in the instance's metadata for a minute."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.metadata import instance_connect
from lab.settings import Lab

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIoSj6pCBgGDFOTgPpMFZd3jdRuaEQRK9WAdl9ad9Qoc"


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(
        id="i-00000000000000001",
        state="running",
        availability_zone="us-east-1a",
        connect_keys=[],
        machines=SimpleNamespace(lab=Lab(54, tmp_path)),
    )
    backend = SimpleNamespace(all_instances=lambda: [made])
    monkeypatch.setattr(instance_connect, "ec2_backends", {"1": {"us-east-1": backend}})
    return made


def send(user: str) -> None:
    body = {"InstanceId": "i-00000000000000001", "InstanceOSUser": user, "SSHPublicKey": KEY}
    instance_connect.send(
        SimpleNamespace(body=json.dumps(body), current_account="1", region="us-east-1")
    )


def users(instance: Any) -> list[str]:
    found = instance_connect.active(instance).get("managed-ssh-keys", {})
    return sorted(found.get("active-keys", {}))


def test_a_key_is_gone_after_a_minute_and_a_later_one_is_not(
    instance: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(instance_connect.time, "time", lambda: now)
    assert users(instance) == []
    send("ec2-user")
    now += 30
    send("admin")
    assert users(instance) == ["admin", "ec2-user"]
    now += 29.9
    assert users(instance) == ["admin", "ec2-user"]
    now += 0.1
    assert users(instance) == ["admin"]
    now += 30
    assert instance_connect.active(instance) == {}
