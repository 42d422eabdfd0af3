"""A published AMI says who built it from what, signed; what does not match is named."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from securesystemslib.dsse import Envelope

from kiln.base.errors import KilnError
from kiln.cloud import images
from kiln.matrix.publishing import Publish
from kiln.publish import attestation, provenance
from kiln.publish.retire import Going, Retirement, retire
from tests.unit.publish.channel import (
    AWS,
    HOME,
    OTHER,
    RECIPE,
    Bake,
    promoted,
    published,
    resolved,
    verified_again,
)
from tests.unit.publish.faults import faulty, refuses


def key_file(folder: Path, name: str = "key.pem") -> Path:
    """A new private key."""
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    path = folder / name
    path.write_bytes(pem)
    return path


@pytest.fixture
def signed(tmp_path: Path) -> Publish:
    return Publish.model_validate({"sign": {"key_file": str(key_file(tmp_path))}})


def wrong_with(settings: Publish, ami_id: str, region: str = HOME) -> tuple[str, ...]:
    assert settings.sign
    key = provenance.public_key(settings.sign, AWS)
    return provenance.verify_image(AWS.in_region(region), ami_id, key).wrong


def test_a_published_ami_says_in_each_region_who_built_it_from_what(
    client: Callable[..., Any], bake: Bake, signed: Publish, tmp_path: Path
) -> None:
    ami_id = bake(1)
    published(OTHER, settings=signed)
    assert wrong_with(signed, ami_id) == ()
    copy = resolved(client, "nightly", OTHER)
    assert wrong_with(signed, copy, OTHER) == ()
    assert signed.sign
    key = provenance.public_key(signed.sign, AWS)
    found = provenance.verify_image(AWS, ami_id, key)
    assert (found.said["recipe"], found.said["run"]) == (RECIPE.name, "20261101T000000Z-aaaa")
    assert f"ami:{HOME}/ami-0a0e0000" in found.said["from"]
    assert "is what its signed statement says" in provenance.provenance_text(found)


def test_each_region_has_its_own_statement_which_fits_into_a_standard_parameter(
    client: Callable[..., Any], bake: Bake, signed: Publish
) -> None:
    ami_id = bake(6)
    # As long as the tags of an AMI get: a digest each, and what a company demands is not signed.
    long = [{"Key": "kiln:input-digest", "Value": "f" * 64}]
    more = ("distro", "flavor", "arch", "kernel-module", "cuda", "nccl", "efa", "target", "line")
    long += [{"Key": f"kiln:{name}", "Value": "ubuntu2404/lts/eks/x86_64"} for name in more]
    client("ec2").create_tags(Resources=[ami_id], Tags=long)
    published(OTHER, settings=signed)
    name = provenance.statement_parameter("20261106T000000Z-aaaa")
    for region in (HOME, OTHER):
        value = client("ssm", region).get_parameter(Name=name)["Parameter"]["Value"]
        assert len(value) < 4096
        payload = json.loads(b64decode(json.loads(value)["payload"]))
        (subject,) = payload["subject"]
        assert subject["name"] == f"{region}/{resolved(client, 'nightly', region)}"


def test_a_second_publish_signs_nothing_again(
    client: Callable[..., Any], bake: Bake, signed: Publish
) -> None:
    ami_id = bake(2)
    name = provenance.statement_parameter("20261102T000000Z-aaaa")
    published(settings=signed)
    before = client("ssm").get_parameter(Name=name)["Parameter"]["Version"]
    published(settings=signed)
    assert client("ssm").get_parameter(Name=name)["Parameter"]["Version"] == before
    assert wrong_with(signed, ami_id) == ()


def change_payload(client: Callable[..., Any], ami_id: str) -> None:
    run_id = "20261103T000000Z-aaaa"
    name = provenance.statement_parameter(run_id)
    envelope = json.loads(client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
    text = json.dumps({**envelope, "payload": "eyJhIjogMn0="})
    client("ssm").put_parameter(Name=name, Value=text, Overwrite=True)
    value = f"{HOME} {run_id} {hashlib.sha256(text.encode()).hexdigest()}"
    tag = {"Key": "kiln:provenance", "Value": value}
    client("ec2").create_tags(Resources=[ami_id], Tags=[tag])


def damage_tag(client: Callable[..., Any], ami_id: str) -> None:
    tag = {"Key": "kiln:driver", "Value": "999.1"}
    client("ec2").create_tags(Resources=[ami_id], Tags=[tag])


def remove_statement(client: Callable[..., Any], ami_id: str) -> None:
    client("ssm").delete_parameter(Name=provenance.statement_parameter("20261103T000000Z-aaaa"))


def change_statement(client: Callable[..., Any], ami_id: str) -> None:
    name = provenance.statement_parameter("20261103T000000Z-aaaa")
    client("ssm").put_parameter(Name=name, Value="{}", Overwrite=True)


def remove_tag(client: Callable[..., Any], ami_id: str) -> None:
    client("ec2").delete_tags(Resources=[ami_id], Tags=[{"Key": "kiln:provenance"}])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_tag, "its tag kiln:driver: 999.1, signed was missing"),
        (remove_statement, "its statement is missing: no parameter /ami-kiln-provenance/"),
        (change_statement, "is not the one that its tag names"),
        (remove_tag, "it has no tag kiln:provenance"),
        (change_payload, "its signature does not match"),
    ],
)
def test_what_does_not_match_is_named_and_not_promoted(
    client: Callable[..., Any],
    bake: Bake,
    signed: Publish,
    damage: Callable[..., None],
    message: str,
) -> None:
    ami_id = bake(3)
    published(settings=signed)
    assert promoted("candidate", signed, dry_run=True).allowed
    damage(client, ami_id)
    (reason,) = wrong_with(signed, ami_id)
    assert message in reason
    judged = promoted("candidate", signed, accept=True)
    (closed,) = (gate for gate in judged.gates if not gate.open)
    assert closed.name == "signed"
    assert message in closed.evidence


def test_another_key_and_another_snapshot_are_named(
    bake: Bake, signed: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ami_id = bake(4)
    published(settings=signed)
    other = provenance.key_in_file(key_file(tmp_path, "other.pem"))
    (reason,) = provenance.verify_image(AWS, ami_id, other).wrong
    assert "another key signed it" in reason
    real = images.as_image

    def exchanged(region: str, described: Any) -> Any:
        return replace(real(region, described), snapshots=("snap-0ffff0000",))

    monkeypatch.setattr(images, "as_image", exchanged)
    (reason,) = wrong_with(signed, ami_id)
    assert reason.startswith("its snapshots: snap-0ffff0000, signed was snap-")


def test_a_signed_text_that_is_not_our_statement_proves_nothing(
    client: Callable[..., Any], bake: Bake, signed: Publish
) -> None:
    ami_id = bake(3)
    published(settings=signed)
    assert signed.sign
    for text in (b"{}", b"[]", b'{"predicate": {"buildDefinition": 7}}'):
        envelope = attestation.sign_statement(text, signed.sign, AWS)
        name = provenance.statement_parameter("20261103T000000Z-aaaa")
        client("ssm").put_parameter(Name=name, Value=envelope, Overwrite=True)
        digest = hashlib.sha256(envelope.encode()).hexdigest()
        tag = {"Key": "kiln:provenance", "Value": f"{HOME} 20261103T000000Z-aaaa {digest}"}
        client("ec2").create_tags(Resources=[ami_id], Tags=[tag])
        (reason,) = wrong_with(signed, ami_id)
        assert "its statement is not one of AMI Kiln's" in reason


def test_who_promotes_needs_the_public_key_only(
    bake: Bake, signed: Publish, tmp_path: Path
) -> None:
    bake(5)
    published(settings=signed)
    private = load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    public = tmp_path / "public.pem"
    public.write_bytes(
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    settings = Publish.model_validate({"sign": {"key_file": str(public)}})
    assert promoted("candidate", settings).allowed
    with pytest.raises(KilnError, match="a private key is needed to sign") as refused:
        attestation.sign_statement(b"{}", settings.sign, AWS)  # type: ignore[arg-type]
    assert refused.value.exit_status == 2


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("-----BEGIN NOTHING-----")
    for name, message in (("no.pem", "not a key in PEM"), ("missing.pem", "No such file")):
        with pytest.raises(KilnError, match=message) as refused:
            provenance.key_in_file(tmp_path / name)
        assert refused.value.exit_status == 2


@pytest.mark.parametrize("spec", ["ECC_NIST_P256", "ECC_NIST_P384", "RSA_2048"])
def test_kms_signs_a_statement_of_any_size(client: Callable[..., Any], spec: str) -> None:
    made = client("kms").create_key(KeyUsage="SIGN_VERIFY", KeySpec=spec)
    sign = Publish.model_validate({"sign": {"kms_key": made["KeyMetadata"]["KeyId"]}}).sign
    assert sign
    text = attestation.sign_statement(b"x" * 5000, sign, AWS)
    assert Envelope.from_dict(json.loads(text)).verify([provenance.public_key(sign, AWS)], 1)


def taken_away(ami_id: str) -> None:
    """Retire an AMI of the region that bakes, step by step."""
    for step in ("deprecate", "disable", "deregister"):
        (done,) = retire(AWS, Retirement((Going(ami_id, HOME, step, ""),), ())).would
        assert done.error == ""


def statements(client: Callable[..., Any], region: str = HOME) -> set[str]:
    """The runs whose statements a region has."""
    pages = client("ssm", region).get_paginator("get_parameters_by_path")
    root = "/ami-kiln-provenance"
    return {
        parameter["Name"].removeprefix(f"{root}/")
        for page in pages.paginate(Path=root)
        for parameter in page["Parameters"]
    }


def test_an_ami_that_is_deregistered_takes_the_statement_of_its_region_with_it(
    client: Callable[..., Any], bake: Bake, signed: Publish
) -> None:
    old, run_id = bake(21), "20261121T000000Z-aaaa"
    published(OTHER, settings=signed)
    bake(22)
    published(OTHER, settings=signed)
    with faulty(refuses("DeregisterImage", "OperationNotPermitted")):
        (refused,) = retire(AWS, Retirement((Going(old, HOME, "deregister", ""),), ())).would
    assert "OperationNotPermitted" in refused.error
    assert run_id in statements(client)
    taken_away(old)
    assert run_id not in statements(client)
    assert run_id in statements(client, OTHER)
    assert "20261122T000000Z-aaaa" in statements(client)


def test_the_statement_of_an_ami_that_was_verified_again_goes_with_that_of_its_build(
    client: Callable[..., Any], bake: Bake, signed: Publish, tmp_path: Path
) -> None:
    old = bake(18)
    published(settings=signed)
    verified_again(old, tmp_path)
    tag = {"Key": "kiln:verified", "Value": "pass 2026-11-24T00:10:00Z c0ffee0"}
    client("ec2").create_tags(Resources=[old], Tags=[tag])
    published(settings=signed)
    runs = {"20261118T000000Z-aaaa", "20261120T000000Z-bbbb"}
    assert runs <= statements(client)
    bake(24)
    published(settings=signed)
    taken_away(old)
    assert not runs & statements(client)


@pytest.mark.parametrize("other", [True, False])
def test_a_parameter_that_does_not_say_where_the_ami_came_from_stays(
    client: Callable[..., Any], bake: Bake, signed: Publish, *, other: bool
) -> None:
    old = bake(25)
    published(OTHER, settings=signed)
    name = provenance.statement_parameter("20261125T000000Z-aaaa")
    there = client("ssm", OTHER).get_parameter(Name=name)["Parameter"]["Value"]
    client("ssm").put_parameter(Name=name, Value=there if other else "[]", Overwrite=True)
    bake(26)
    published(OTHER, settings=signed)
    taken_away(old)
    assert "20261125T000000Z-aaaa" in statements(client)
    client("ssm").delete_parameter(Name=name)
