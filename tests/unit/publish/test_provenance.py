"""A published AMI says who built it from what, signed; what does not match is named."""

from __future__ import annotations

import json
from base64 import b64decode
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
from kiln.matrix.model import Publish
from kiln.publish import provenance
from kiln.publish.channels import statement_parameter
from kiln.publish.retire import Going, Retirement, retire
from tests.unit.publish.channel import (
    AWS,
    HOME,
    OTHER,
    RECIPE,
    Bake,
    Client,
    promoted,
    published,
    resolved,
)
from tests.unit.publish.faults import faulty, refuses

pytestmark = pytest.mark.slow


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


def test_each_region_has_a_statement_that_fits(client: Client, bake: Bake, signed: Publish) -> None:
    ami_id = bake(1)
    # As long as the tags of an AMI get: a digest each, and what a company demands is not signed.
    long = [{"Key": "kiln:input-digest", "Value": "f" * 64}]
    more = ("distro", "flavor", "arch", "kernel-module", "cuda", "nccl", "efa", "target", "line")
    long += [{"Key": f"kiln:{name}", "Value": "ubuntu2404/lts/eks/x86_64"} for name in more]
    client("ec2").create_tags(Resources=[ami_id], Tags=long)
    published(OTHER, settings=signed)
    assert signed.sign
    key = provenance.public_key(signed.sign, AWS)
    for region in (HOME, OTHER):
        image = resolved(client, "nightly", region)
        value = client("ssm", region).get_parameter(Name=statement_parameter(image))
        assert len(value["Parameter"]["Value"]) < 4096
        payload = json.loads(b64decode(json.loads(value["Parameter"]["Value"])["payload"]))
        assert [subject["name"] for subject in payload["subject"]] == [f"{region}/{image}"]
        found = provenance.verify_image(AWS.in_region(region), image, key)
        assert found.wrong == ()
        assert found.said["recipe"] == RECIPE.name
        assert found.said["invocationId"] == "20261101T000000Z-aaaa"
        assert f"ami:{HOME}/ami-0a0e0000" in found.said["from"]


def test_mismatch_is_named_and_not_promoted(client: Client, bake: Bake, signed: Publish) -> None:
    ami_id = bake(3)
    published(OTHER, settings=signed)
    assert promoted("candidate", signed, dry_run=True).allowed
    name, there = map(statement_parameter, (ami_id, resolved(client, "nightly", OTHER)))
    ssm = client("ssm")
    good = ssm.get_parameter(Name=name)["Parameter"]["Value"]
    # The same key has signed that of the copy in the other region.
    others = client("ssm", OTHER).get_parameter(Name=there)["Parameter"]["Value"]
    changed = json.dumps({**json.loads(good), "payload": "eyJhIjogMn0="})

    def require_refusal(message: str) -> None:
        assert message in wrong_with(signed, ami_id)[0]
        gates = promoted("candidate", signed, accept=True).gates
        (closed,) = (gate for gate in gates if not gate.open)
        assert (closed.name, message in closed.evidence) == ("signed", True)

    for text, message in (
        (changed, "was changed, or another key signed it"),
        (others, f"its image: {HOME}/ami-"),
        ("{}", "is not one of AMI Kiln's"),
    ):
        ssm.put_parameter(Name=name, Value=text, Overwrite=True)
        require_refusal(message)
    ssm.put_parameter(Name=name, Value=good, Overwrite=True)
    tag = {"Key": "kiln:driver", "Value": "999.1"}
    client("ec2").create_tags(Resources=[ami_id], Tags=[tag])
    require_refusal("its tag kiln:driver: 999.1, signed was missing")
    ssm.delete_parameter(Name=name)
    require_refusal("it has no statement: no parameter /ami-kiln-provenance/ami-")


def test_other_key_and_other_snapshot_are_named(
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


def test_promotion_needs_the_public_key_only(bake: Bake, signed: Publish, tmp_path: Path) -> None:
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
        provenance.sign_statement("{}", settings.sign, AWS)  # type: ignore[arg-type]
    assert refused.value.exit_status == 2


@pytest.mark.parametrize("spec", ["ECC_NIST_P384", "RSA_2048"])
def test_kms_signs_a_statement_of_any_size(client: Client, spec: str) -> None:
    made = client("kms").create_key(KeyUsage="SIGN_VERIFY", KeySpec=spec)
    sign = Publish.model_validate({"sign": {"kms_key": made["KeyMetadata"]["KeyId"]}}).sign
    assert sign
    text = provenance.sign_statement("x" * 5000, sign, AWS)
    assert Envelope.from_dict(json.loads(text)).verify([provenance.public_key(sign, AWS)], 1)


def test_deregistered_ami_loses_its_statement(client: Client, bake: Bake, signed: Publish) -> None:
    old = bake(21)
    published(OTHER, settings=signed)
    copy = resolved(client, "nightly", OTHER)
    ssm, name = client("ssm"), statement_parameter(old)

    def deregistered() -> str:
        (done,) = retire(AWS, Retirement((Going(old, HOME, "deregister", ""),), ())).would
        return done.error

    bake(22)
    published(OTHER, settings=signed)
    with faulty(refuses("DeregisterImage", "OperationNotPermitted")):
        assert "OperationNotPermitted" in deregistered()
    assert ssm.get_parameter(Name=name)
    for step in ("deprecate", "disable"):
        retire(AWS, Retirement((Going(old, HOME, step, ""),), ()))  # type: ignore[arg-type]
    assert deregistered() == ""
    assert ssm.get_parameters(Names=[name])["Parameters"] == []
    assert client("ssm", OTHER).get_parameter(Name=statement_parameter(copy))
