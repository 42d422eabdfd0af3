"""Provenance of a published AMI: a statement of its snapshots, tags, inputs and checks (SLSA
provenance in in-toto, https://slsa.dev/spec/v1.0/provenance), signed, in its region's SSM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization as pems
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import AWSSigner, CryptoSigner, SSlibKey

from kiln.base.errors import KilnError
from kiln.base.paths import matrix_file
from kiln.base.tags import KEEP, PREFIX, RETIRING
from kiln.base.templates import render
from kiln.cloud import aws
from kiln.cloud.images import Image, require_image
from kiln.cloud.target import Target
from kiln.matrix.model import Sign
from kiln.pipeline.record import Record
from kiln.publish.channels import put_parameter, statement_parameter
from kiln.publish.regions import in_regions


@dataclass(frozen=True)
class Provenance:
    """Statement of an AMI, and each difference from the AMI."""

    ami_id: str
    region: str
    said: dict[str, str]
    wrong: tuple[str, ...]


def attest(
    target: Target, record: Record, images: Mapping[str, str], sign: Sign, tags: Mapping[str, str]
) -> None:
    """Sign a statement for each image, by region, that does not match the one it has."""
    key = public_key(sign, target)

    def attest_there(there: Target) -> None:
        region, ami_id = there.region, images[there.region]
        if not verify_image(there, ami_id, key).wrong:
            return
        facts = _signed_facts(require_image(there, ami_id))
        text = render("provenance.json.j2", record=record, facts=facts, digest=_digest)
        envelope = sign_statement(text, sign, target)
        with aws.explained(f"the statement of {ami_id} could not be kept in {region}"):
            put_parameter(there, tags, statement_parameter(ami_id), envelope)
        if record.folder and Path(record.folder).is_dir():
            (Path(record.folder) / f"provenance-{region}.json").write_text(envelope + "\n")

    in_regions(target, images, attest_there)


def sign_statement(statement: str, sign: Sign, target: Target) -> str:
    """Return the statement in a signed envelope (DSSE), as JSON."""
    envelope = Envelope(statement.encode(), "application/vnd.in-toto+json", {})
    if sign.kms_key:
        with aws.explained(f"the KMS key {sign.kms_key} could not sign in {target.region}"):
            envelope.sign(_KmsSigner(sign.kms_key, target))
    else:
        path = matrix_file().parent / str(sign.key_file)
        key = key_in_file(path)
        try:
            # Not by CryptoSigner's URI: it takes no path with # or ?.
            private = pems.load_pem_private_key(path.read_bytes(), None)
            envelope.sign(CryptoSigner(private, key))
        except (ValueError, TypeError):
            raise KilnError(f"{path}: a private key is needed to sign") from None
    return json.dumps(envelope.to_dict(), separators=(",", ":"))


def _digest(data: Any) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _signed_facts(image: Image) -> dict[str, str]:
    """Return what a statement holds of an image: its id, its snapshots, our tags that stay."""
    ours = {key for key in image.tags if key.startswith(PREFIX)} - {KEEP, RETIRING}
    tags = {f"tag {key}": image.tags[key] for key in sorted(ours)}
    ids = {"image": f"{image.region}/{image.ami_id}", "snapshots": ", ".join(image.snapshots)}
    return {**ids, **tags}


def verify_image(target: Target, ami_id: str, key: SSlibKey) -> Provenance:
    """Compare an AMI of the target's region with its statement, which `key` must have signed."""
    image, name = require_image(target, ami_id), statement_parameter(ami_id)
    with aws.explained(f"the statement {name} could not be read in {target.region}"):
        found = aws.ssm(target).get_parameters(Names=[name])["Parameters"]
    said: dict[str, str] = {}
    wrong = [f"it has no statement: no parameter {name} in {target.region}"]
    if found:
        try:
            envelope = Envelope.from_dict(json.loads(found[0]["Value"]))
            envelope.verify([key], 1)
            statement = json.loads(envelope.payload)
            said, wrong = _said(statement), list(_differences(image, statement))
        except VerificationError:
            wrong = [f"the statement in {name} was changed, or another key signed it"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            wrong = [f"the statement in {name} is not one of AMI Kiln's: {error!r}"]
    return Provenance(ami_id, target.region, said, tuple(wrong))


def _said(statement: Any) -> dict[str, str]:
    build, run = (statement["predicate"][part] for part in ("buildDefinition", "runDetails"))
    inputs = ", ".join(each["name"] for each in build["resolvedDependencies"])
    about = {"from": inputs, "builder": run["builder"]["id"]}
    return {**build["externalParameters"], **about, **run["metadata"]}


def _differences(image: Image, statement: Any) -> Iterator[str]:
    (subject,) = statement["subject"]
    signed, now = subject["annotations"], _signed_facts(image)
    for what in sorted({*signed, *now}):
        if signed.get(what) != now.get(what):
            was = signed.get(what, "missing")
            yield f"its {what}: {now.get(what, 'missing')}, signed was {was}"


class _KmsSigner(AWSSigner):
    """AWSSigner with the target's credentials and region, and the key's own scheme."""

    def __init__(self, key_id: str, target: Target) -> None:
        self.aws_key_id, self.client = key_id, aws.client("kms", target)
        with aws.explained(f"the KMS key {key_id} could not be read in {target.region}"):
            answer = self.client.get_public_key(KeyId=key_id)
        scheme = self._get_default_scheme(answer.get("SigningAlgorithms", []))
        if scheme is None:
            raise KilnError(f"the KMS key {key_id} cannot sign a statement: use a SIGN_VERIFY key")
        self.aws_algo = self.aws_algos[scheme]
        key = pems.load_der_public_key(answer["PublicKey"])
        self._public_key = SSlibKey.from_crypto(key, scheme=scheme)


def public_key(sign: Sign, target: Target) -> SSlibKey:
    """Return the key that must have signed."""
    if sign.kms_key:
        return _KmsSigner(sign.kms_key, target).public_key
    return key_in_file(matrix_file().parent / str(sign.key_file))


def key_in_file(path: Path) -> SSlibKey:
    """Return the public key in a PEM file, which may hold the private one."""
    try:
        pem = path.read_bytes()
        if b"PRIVATE KEY" in pem:
            return SSlibKey.from_crypto(pems.load_pem_private_key(pem, None).public_key())
        return SSlibKey.from_crypto(pems.load_pem_public_key(pem))
    except (OSError, ValueError, TypeError) as error:
        raise KilnError(f"{path}: not a key in PEM: {error}") from None
