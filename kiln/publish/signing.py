"""Signs statements: DSSE envelopes, with a key in KMS or in a file."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kiln.base.errors import KilnError
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.publishing import Sign
from kiln.publish.signatures import HOW_TO_MAKE, PAYLOAD_TYPE, key_path, kms_key, read_key

# Bytes that KMS hashes itself: https://docs.aws.amazon.com/kms/latest/APIReference/API_Sign.html
_KMS_RAW = 4096


def sign_statement(statement: bytes, sign: Sign, target: Target) -> str:
    """The statement in its signed envelope, as JSON.

    Raises KilnError: exit status 2 for a key that cannot sign, 1 if KMS refuses.
    """
    from securesystemslib.dsse import Envelope

    envelope = Envelope(statement, PAYLOAD_TYPE, {})
    envelope.sign(_signer(sign, target))
    return json.dumps(envelope.to_dict(), separators=(",", ":"))


def _signer(sign: Sign, target: Target) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from securesystemslib.signer import CryptoSigner

    if sign.kms_key:
        return _kms_signer(sign.kms_key, target)
    path = key_path(sign)
    pem = read_key(path)
    if b"PRIVATE KEY" not in pem:
        raise KilnError(f"{path}: a private key is needed to sign", hint=HOW_TO_MAKE)
    try:
        return CryptoSigner(serialization.load_pem_private_key(pem, None))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KilnError(f"{path}: not a private key in PEM: {error}", hint=HOW_TO_MAKE) from None


def _kms_signer(key_id: str, target: Target) -> Any:
    """Signs in KMS. The library's own one makes a client without the target's settings."""
    from securesystemslib.signer import Signature

    key, algorithm = kms_key(key_id, target)

    class KmsSigner:
        def sign(self, payload: bytes) -> Signature:
            message, kind = payload, "RAW"
            if len(payload) > _KMS_RAW:
                message, kind = (
                    hashlib.new(key.get_hash_algorithm_name(), payload).digest(),
                    "DIGEST",
                )
            with aws.explained(f"the KMS key {key_id} could not sign in {target.region}"):
                answer = aws.kms(target).sign(
                    KeyId=key_id,
                    Message=message,
                    MessageType=kind,
                    SigningAlgorithm=algorithm,
                )
            return Signature(key.keyid, answer["Signature"].hex())

    return KmsSigner()
