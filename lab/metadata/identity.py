"""Signatures of the identity document.

AWS signs with its own key for each region, whose certificates it publishes. The lab has a key of
its own, made on this machine, whose certificate is `identity.pem` beside the lab's CA: who checks
the document checks with that instead.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-iid.html
"""

from __future__ import annotations

import base64
import datetime
import os
import textwrap
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import NameOID

from lab import locks
from lab.settings import Lab

_NAME = "AMI Kiln lab instance identity (rehearsals only)"


@cache
def _key(home: Path) -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
    """The key and its certificate, made when they are missing."""
    home.mkdir(parents=True, exist_ok=True)
    key_file, certificate_file = home / "identity.key", home / "identity.pem"
    with locks.alone(home / ".identity.lock"):
        if not certificate_file.exists():
            _make(key_file, certificate_file)
    key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise TypeError(f"{key_file}: not an RSA key")
    return key, x509.load_pem_x509_certificate(certificate_file.read_bytes())


def _make(key_file: Path, certificate_file: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(private)
    # Written last: when it exists, the key is complete.
    fresh = certificate_file.with_suffix(".new")
    fresh.write_bytes(certificate.public_bytes(pem))
    fresh.rename(certificate_file)


def signature(lab: Lab, document: bytes) -> str:
    """`signature`: RSA with SHA-256, base64 in lines."""
    key, _ = _key(lab.shared / "ca")
    return _lines(key.sign(document, padding.PKCS1v15(), hashes.SHA256()))


def signed(lab: Lab, document: bytes) -> str:
    """`pkcs7` and `rsa2048`: a PKCS7 message with the document in it, without its first and last
    line of PEM, as IMDS has it. AWS's `pkcs7` is signed with DSA, this one with RSA."""
    key, certificate = _key(lab.shared / "ca")
    message = (
        pkcs7.PKCS7SignatureBuilder()
        .set_data(document)
        .add_signer(certificate, key, hashes.SHA256())
        .sign(serialization.Encoding.DER, [pkcs7.PKCS7Options.Binary, pkcs7.PKCS7Options.NoCerts])
    )
    return _lines(message)


def _lines(content: bytes) -> str:
    return "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 64))
