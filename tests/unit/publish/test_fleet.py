"""What the fleet's tasks ask of AWS: pages, not instances; documents that cannot change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.endpoint import Endpoint

from kiln.base.errors import KilnError
from kiln.fleet import document, install
from kiln.fleet.machines import FleetMachine
from kiln.fleet.status import fleet_status
from kiln.telemetry.settings import Telemetry
from tests.unit.publish.channel import AWS, Client
from tests.unit.publish.faults import at_each_call

pytestmark = pytest.mark.slow
BUCKET = "ami-kiln-fleet-123456789012-us-east-1"


@pytest.fixture
def stored(client: Client) -> Iterator[None]:
    """Nothing of the fleet is in the account, before and after."""
    yield
    document.remove_stored(AWS, BUCKET)


def test_unusable_instances_are_named_and_fail(stored: None) -> None:
    fields = {"instance_type": "g4dn.xlarge", "state": "running", "role": "gpu", "name": ""}
    changes = ({}, {"role": ""}, {"instance_type": "t3.micro"}, {"state": "stopped"})
    fleet = [
        FleetMachine(f"i-{number:017x}", "ami-1", **{**fields, **change})
        for number, change in enumerate(changes)
    ]
    rows = fleet_status(AWS, fleet, Telemetry(), lambda text: None)
    silent = ["no SSM", "no metrics", "no events"]
    assert [[*row.missing] for row in rows] == [
        silent, ["no role", *silent], ["no GPU", *silent], ["not running"],
    ]  # fmt: skip
    assert "gpu lacks AmazonSSMManagedInstanceCore" in rows[0].missing["no SSM"]
    assert not any(row.reports for row in rows)
    how, said = install.HowToInstall(Telemetry(), bucket=BUCKET), list[str]()
    with pytest.raises(KilnError, match="on none of these instances") as failed:
        install.install_fleet(AWS, fleet[1:2], how, said.append)
    assert failed.value.exit_status == 1
    assert "no role" in said[-1]


def test_each_text_is_a_document_version(
    stored: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = document.publish_document(AWS)
    text = document.document_text()
    assert first["DocumentVersion"] == "1"
    assert first["DocumentHash"] == hashlib.sha256(text.encode()).hexdigest()
    calls: list[str] = []
    with monkeypatch.context() as patch:
        at_each_call(patch, lambda region, name, given, call: calls.append(name) or call())
        assert document.publish_document(AWS) == first
    assert calls == ["DescribeDocument"]
    monkeypatch.setattr(document, "document_text", lambda: text.replace("AMI Kiln:", "Kiln:"))
    assert document.publish_document(AWS)["DocumentVersion"] == "2"
    monkeypatch.setattr(document, "document_text", lambda: text)
    assert document.publish_document(AWS) == first


def test_changed_document_is_not_run(
    stored: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssm, text = client("ssm"), document.document_text()
    name = f"kiln-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    changed = json.dumps({**json.loads(text), "description": "another"})
    ssm.create_document(
        Name=document.DOCUMENT, Content=changed, DocumentType="Command", VersionName=name
    )
    with pytest.raises(KilnError, match="has the SHA-256") as failed:
        document.publish_document(AWS)
    assert failed.value.exit_status == 1


def test_bundle_is_stored_under_its_hash_and_removed(stored: None, client: Client) -> None:
    s3, text = client("s3"), "#!/bin/bash\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    key = f"telemetry/{digest}/kiln-telemetry.sh"
    for _ in range(2):
        url = f"https://{BUCKET}.s3.us-east-1.amazonaws.com/{key}"
        assert document.store_bundle(AWS, BUCKET, text) == (url, digest)
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == text.encode()
    s3.put_object(Bucket=BUCKET, Key="telemetry/notes.txt", Body=b"")
    assert document.remove_stored(AWS, BUCKET) == [f"s3://{BUCKET}/{key}"]
    assert document.remove_stored(AWS, BUCKET) == []
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1


def test_each_s3_call_names_the_bucket_owner(
    stored: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have taken the bucket's name in another account."""
    sent: dict[str, str | None] = {}
    real = Endpoint.make_request

    def noted(self: Any, model: Any, request: Any) -> Any:
        if model.service_model.service_name == "s3":
            owner = request["headers"].get("x-amz-expected-bucket-owner")
            sent[model.name] = owner and str(owner)
        return real(self, model, request)

    monkeypatch.setattr(Endpoint, "make_request", noted)
    document.store_bundle(AWS, BUCKET, "#!/bin/bash\n")
    document.remove_stored(AWS, BUCKET)
    assert {*sent} >= {"HeadBucket", "PutObject", "DeleteObject"}
    sent.pop("CreateBucket", None)  # the bucket is nobody's yet
    assert {*sent.values()} == {"123456789012"}, sent
