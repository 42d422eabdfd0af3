"""Published hashes of files: `kiln/facts/knowledge/checksums.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

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
