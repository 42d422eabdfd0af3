"""SHA-256 that vendors and public package recipes name (`knowledge/checksums.yaml`)."""

from __future__ import annotations

from kiln.facts.tables import table


def known_sha256(url: str) -> tuple[str, str] | tuple[None, None]:
    """(sha256, source) of a vendor's file by its URL, when somebody has published it."""
    for files in table("checksums")["files"]:
        for version, sha256 in files["sha256"].items():
            if url == files["url"].format(version=version):
                return sha256, files["source"]
    return None, None
