"""The lab's certificate authority: guests trust it, so that the mirror can serve HTTPS.

It is made on the machine that runs the lab; its key never leaves the state folder.
"""

from __future__ import annotations

import datetime
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lab.base import locks, settings

_NAME = "AMI Kiln lab CA (rehearsals only)"
_VALID = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class Authority:
    """Paths of the CA's certificate and key (PEM)."""

    certificate: Path
    key: Path


def ensure(state: Path | None = None) -> Authority:
    """The CA below `state` (default: what all labs share), made when it is missing."""
    home = (state or settings.current().shared) / "ca"
    authority = Authority(home / "ca.pem", home / "ca.key")
    if not authority.certificate.exists():
        home.mkdir(parents=True, exist_ok=True)
        # A starting lab and the making of a root filesystem may both find none.
        with locks.alone(home / ".lock"):
            if not authority.certificate.exists():
                _make(authority)
    return authority


def _make(authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(authority.key, key)
    # Written last: when it exists, the CA is complete.
    _write(authority.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def server_context(hosts: list[str], state: Path | None = None) -> ssl.SSLContext:
    """A server-side TLS context with a certificate for all `hosts`, signed by the lab's CA."""
    authority = ensure(state)
    issuer = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    issuer_key = serialization.load_pem_private_key(authority.key.read_bytes(), password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{authority.key}: not an EC key")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "AMI Kiln lab mirror")])
    names = [x509.DNSName(host) for host in hosts]
    leaf = (
        _builder(subject, issuer.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    home = authority.certificate.parent
    chain, leaf_key = home / f"mirror-{os.getpid()}.pem", home / f"mirror-{os.getpid()}.key"
    _write(chain, leaf.public_bytes(serialization.Encoding.PEM))
    _write_key(leaf_key, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, leaf_key)
    chain.unlink()
    leaf_key.unlink()
    return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A guest's clock may be a little behind the host's.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
    )


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write atomically: a second lab may be reading the file."""
    making = path.with_name(f".{path.name}.{os.getpid()}")
    making.touch(mode=mode)
    making.write_bytes(content)
    making.replace(path)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(path, pem, mode=0o600)
