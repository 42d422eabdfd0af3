"""Checks the signatures of statements: DSSE envelopes, and the keys that must have signed them, in
KMS or in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import matrix_file
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.publishing import Sign

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

# https://github.com/in-toto/attestation/blob/7bfb269c6eb5fe8ca56edf5e1cc17776a294457a/spec/v1/envelope.md
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_KMS_ALGORITHMS = {
    "ECDSA_SHA_256": "ecdsa-sha2-nistp256",
    "ECDSA_SHA_384": "ecdsa-sha2-nistp384",
    "RSASSA_PSS_SHA_256": "rsassa-pss-sha256",
}


def opened(envelope: str, key: SSlibKey) -> bytes:
    """The statement in an envelope that `key` has signed.

    Raises KilnError (exit status 1) if it is not an envelope, or if another key signed it.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError

    try:
        data: Any = json.loads(envelope)
        read = Envelope.from_dict(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise operation_failed(f"it is not a signed envelope: {error}") from None
    if read.payload_type != PAYLOAD_TYPE:
        raise operation_failed(f"its envelope holds {read.payload_type}, not {PAYLOAD_TYPE}")
    if key.keyid not in read.signatures:
        signed_by = ", ".join(name[:16] for name in read.signatures) or "nobody"
        raise operation_failed(f"another key signed it: {signed_by}, not {key.keyid[:16]}")
    try:
        key.verify_signature(read.signatures[key.keyid], read.pae())
    except UnverifiedSignatureError:
        raise operation_failed("its signature does not match: it was changed") from None
    return bytes(read.payload)


def public_key(sign: Sign, target: Target) -> SSlibKey:
    """The key that statements must be signed with.

    Raises KilnError: exit status 2 for a file that holds no such key, 1 if KMS refuses.
    """
    if sign.kms_key:
        return kms_key(sign.kms_key, target)[0]
    return key_in_file(key_path(sign))


def key_in_file(path: Path) -> SSlibKey:
    """The public key in a PEM file, which may be the private one.

    Raises KilnError (exit status 2) for anything else.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from securesystemslib.signer import SSlibKey

    pem = read_key(path)
    try:
        if b"PRIVATE KEY" in pem:
            public: Any = serialization.load_pem_private_key(pem, None).public_key()
        else:
            public = serialization.load_pem_public_key(pem)
        return SSlibKey.from_crypto(public)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KilnError(f"{path}: not a key in PEM: {error}", hint=HOW_TO_MAKE) from None


HOW_TO_MAKE = "openssl genpkey -algorithm ed25519 -out FILE makes a private one"


def key_path(sign: Sign) -> Path:
    """The file of a key; a relative path is relative to amis.yaml."""
    return matrix_file().parent / str(sign.key_file)


def read_key(path: Path) -> bytes:
    """The bytes of a key's file. Raises KilnError (exit status 2) if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise KilnError(f"{path}: {error.strerror}", hint=HOW_TO_MAKE) from None


def kms_key(key_id: str, target: Target) -> tuple[SSlibKey, str]:
    """The public part of a KMS key, and the algorithm with which KMS signs.

    Raises KilnError: exit status 2 for a key that cannot sign a statement, 1 if KMS refuses.
    """
    from cryptography.hazmat.primitives.serialization import load_der_public_key
    from securesystemslib.signer import SSlibKey

    with aws.explained(f"the KMS key {key_id} could not be read in {target.region}"):
        answer = aws.kms(target).get_public_key(KeyId=key_id)
    offered: Sequence[str] = answer.get("SigningAlgorithms", [])
    algorithm = next((name for name in _KMS_ALGORITHMS if name in offered), None)
    if algorithm is None:
        raise KilnError(
            f"the KMS key {key_id} cannot sign a statement: it offers {', '.join(offered)}",
            hint=f"use a key for SIGN_VERIFY with one of {', '.join(_KMS_ALGORITHMS)}",
        )
    key: Any = load_der_public_key(answer["PublicKey"])
    return SSlibKey.from_crypto(key, scheme=_KMS_ALGORITHMS[algorithm]), algorithm
