"""Published hashes of files; signing keys: `kiln/facts/knowledge/checksums.yaml`, `keys.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kiln.facts.tables import confirmed, table


@dataclass(frozen=True)
class Checksum:
    """The published hash of a vendor's file. `confirmed` is false if `source` does not show it."""

    sha256: str
    source: str
    confirmed: bool


def known_sha256(url: str) -> Checksum | None:
    """The published hash of a vendor's file, by its URL; None if there is none."""
    for files in table("checksums")["files"]:
        for version, sha256 in files["sha256"].items():
            if url == files["url"].format(version=version):
                source = _of_version(files["source"], version)
                return Checksum(sha256, source, confirmed(files))
    return None


def _of_version(source: str | dict[str, str], version: str) -> str:
    """The source of a version's hash: the same for all, or one for each."""
    own = source if isinstance(source, str) else source[version]
    return own.replace("{version}", version)


@dataclass(frozen=True)
class SigningKey:
    """A signing key of keys.yaml. `fingerprint` is that of the primary key; `confirmed` is false
    if fewer than two independent sources show it."""

    name: str
    fingerprint: str
    signs: str
    sources: tuple[str, ...]
    confirmed: bool


@cache
def signing_keys() -> dict[str, SigningKey]:
    """The keys that provisioners trust, by name."""
    return {
        name: SigningKey(
            name=name,
            fingerprint=str(entry["fingerprint"]),
            signs=entry["signs"],
            sources=tuple(entry["sources"]),
            confirmed=confirmed(entry),
        )
        for name, entry in table("keys")["keys"].items()
    }
