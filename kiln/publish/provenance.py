"""Where a published AMI comes from: a signed statement (in-toto, SLSA provenance v1, in a DSSE
envelope) of its snapshots, tags, inputs and checks.

An AMI's tag names its statement, which is kept in its region's SSM beside the channels and with the
run's record. Formats: https://slsa.dev/spec/v1.0/provenance,
https://github.com/in-toto/attestation/tree/7bfb269c6eb5fe8ca56edf5e1cc17776a294457a/spec/v1
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.paths import matrix_file
from kiln.base.tags import KEEP, PREFIX, PROVENANCE, RETIRING
from kiln.cloud import aws
from kiln.cloud.images import Image, require_image
from kiln.cloud.target import Target
from kiln.matrix.publishing import Sign
from kiln.publish.regions import in_regions

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
# Tags that are set on an AMI after it was published.
_LATER = frozenset({PROVENANCE, KEEP, RETIRING})


def statement_parameter(run_id: str) -> str:
    """Return the SSM parameter of a run's statement, in the AMI's region."""
    return f"/ami-kiln-provenance/{run_id}"


@dataclass(frozen=True)
class Provenance:
    """A summary of an AMI's statement, and each difference between the two."""

    ami_id: str
    region: str
    statement: str | None
    said: dict[str, Any]
    wrong: tuple[str, ...]


class _UnprovenError(Exception):
    """Why there is no statement to compare with."""


def mismatches(
    target: Target, images: Mapping[str, str], key: SSlibKey
) -> dict[str, tuple[str, ...]]:
    """Compare each image with its statement; by region, each difference."""
    return in_regions(
        list(images),
        lambda region: verify_image(target.in_region(region), images[region], key).wrong,
    )


def verify_image(target: Target, ami_id: str, key: SSlibKey) -> Provenance:
    """Compare an AMI of the target's region with the statement that its tag names.

    Raises KilnError (exit status 1) if AWS does not answer or the AMI is not there.
    """
    image = require_image(target, ami_id)
    said: dict[str, Any] = {}
    try:
        statement = _fetched(target, image, key)
        said, wrong = _summary(statement), tuple(_differences(image, statement))
    except _UnprovenError as missing:
        wrong = (str(missing),)
    except (KeyError, TypeError, AttributeError):
        wrong = ("its statement is not one of AMI Kiln's, though the key signed it",)
    return Provenance(ami_id, target.region, image.tags.get(PROVENANCE), said, wrong)


def provenance_text(provenance: Provenance) -> str:
    """Render for a terminal."""
    lines = [f"{name:9} {value}" for name, value in provenance.said.items()]
    match = f"{provenance.ami_id} in {provenance.region} is what its signed statement says"
    return "\n".join([*lines, *([f"wrong     {why}" for why in provenance.wrong] or [match])])


def _fetched(target: Target, image: Image, key: SSlibKey) -> Any:
    """Fetch the statement that an image's tag names, and require the key's signature."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError

    names = image.tags.get(PROVENANCE)
    if not names:
        raise _UnprovenError(f"it has no tag {PROVENANCE}")
    _, run_id, digest = [*names.split(), "", "", ""][:3]
    if not vocabulary.RUN_ID.fits(run_id):
        raise _UnprovenError(f"its tag {PROVENANCE} names no statement: {vocabulary.shown(names)}")
    name = statement_parameter(run_id)
    with aws.explained(f"the statement {name} could not be read in {target.region}"):
        parameters = aws.ssm(target).get_parameters(Names=[name])["Parameters"]
    if not parameters:
        raise _UnprovenError(f"its statement is missing: no parameter {name} in {target.region}")
    text = str(parameters[0]["Value"])
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise _UnprovenError(f"the statement in {name} is not the one that its tag names")
    try:
        envelope = Envelope.from_dict(json.loads(text))
        if envelope.payload_type != PAYLOAD_TYPE or key.keyid not in envelope.signatures:
            raise _UnprovenError(f"the statement in {name}: another key signed it")
        key.verify_signature(envelope.signatures[key.keyid], envelope.pae())
        return json.loads(envelope.payload)
    except UnverifiedSignatureError:
        raise _UnprovenError(f"the statement in {name}: its signature does not match") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _UnprovenError(f"the statement in {name} cannot be read: {error}") from None


def _differences(image: Image, statement: Any) -> Iterator[str]:
    subjects = {subject["name"]: subject for subject in statement["subject"]}
    subject = subjects.get(subject_name(image.region, image.ami_id))
    if subject is None:
        yield f"the statement is about {', '.join(map(str, subjects))}"
        return
    signed, now = (
        {"snapshots": ", ".join(of["snapshots"])} | {f"tag {k}": v for k, v in of["tags"].items()}
        for of in (subject["annotations"], signed_facts(image))
    )
    for what in sorted({*signed, *now}):
        if signed.get(what) != now.get(what):
            was = signed.get(what, "missing")
            yield f"its {what}: {now.get(what, 'missing')}, signed was {was}"


def _summary(statement: Any) -> dict[str, Any]:
    build = statement["predicate"]["buildDefinition"]
    run = statement["predicate"]["runDetails"]
    inputs = build["resolvedDependencies"]
    return {
        "recipe": build["externalParameters"]["recipe"],
        "builder": run["builder"]["id"],
        "run": run["metadata"]["invocationId"],
        "finished": run["metadata"]["finishedOn"],
        "from": ", ".join(each.get("uri") or each["name"] for each in inputs),
        "checks": run["metadata"]["checks"],
    }


def signed_facts(image: Image) -> dict[str, Any]:
    """Return the facts of an image that its statement holds."""
    tags = {k: v for k, v in sorted(image.tags.items()) if k.startswith(PREFIX) and k not in _LATER}
    return {"snapshots": list(image.snapshots), "tags": tags}


def subject_name(region: str, ami_id: str) -> str:
    """Return the name of an AMI in a statement."""
    return f"{region}/{ami_id}"


def public_key(sign: Sign, target: Target) -> SSlibKey:
    """Return the key that must have signed; raises KilnError for an unusable key."""
    if sign.kms_key:
        return kms_key(sign.kms_key, target)
    return key_in_file(matrix_file().parent / str(sign.key_file))


def key_in_file(path: Path) -> SSlibKey:
    """Return the public key in a PEM file, which may hold the private one."""
    from securesystemslib.signer import SSlibKey

    key = read_pem(path)
    return SSlibKey.from_crypto(key.public_key() if hasattr(key, "public_key") else key)


def read_pem(path: Path) -> Any:
    """Return the private or public key in a PEM file; raises KilnError (exit status 2)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as pems

    try:
        pem = path.read_bytes()
        if b"PRIVATE KEY" in pem:
            return pems.load_pem_private_key(pem, None)
        return pems.load_pem_public_key(pem)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        hint = "openssl genpkey -algorithm ed25519 -out FILE makes a private one"
        raise KilnError(f"{path}: not a key in PEM: {error}", hint=hint) from None


def kms_key(key_id: str, target: Target) -> SSlibKey:
    """Return the public part of a KMS key, with the scheme of its signatures."""
    from cryptography.hazmat.primitives.serialization import load_der_public_key
    from securesystemslib.signer import AWSSigner, SSlibKey

    with aws.explained(f"the KMS key {key_id} could not be read in {target.region}"):
        answer = aws.kms(target).get_public_key(KeyId=key_id)
    for scheme, algorithm in AWSSigner.aws_algos.items():
        if algorithm in answer.get("SigningAlgorithms", []):
            key: Any = load_der_public_key(answer["PublicKey"])
            return SSlibKey.from_crypto(key, scheme=scheme)
    raise KilnError(
        f"the KMS key {key_id} cannot sign a statement",
        hint=f"use a SIGN_VERIFY key with one of {', '.join(AWSSigner.aws_algos.values())}",
    )
