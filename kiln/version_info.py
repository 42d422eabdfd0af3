"""Reads `/etc/kiln/version-info.json`: what is really on an image. Its shape is described in
provisioners/lib/version_info.py, which writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kiln.errors import KilnError


@dataclass(frozen=True)
class Package:
    """An installed package. `version` is complete: epoch (unless 0), upstream version, release."""

    manager: str
    name: str
    version: str
    arch: str


def of(record: dict[str, Any], called: str = "the record") -> dict[str, Any]:
    """The version-info in a build record, or the record itself when it is one.

    Raises KilnError (exit code 2) when there is none.
    """
    for candidate in (record.get("versions"), record):
        if isinstance(candidate, dict) and isinstance(candidate.get("packages"), list):
            return candidate
    raise KilnError(
        f"{called} holds no version-info",
        hint="give a build record, or a copy of /etc/kiln/version-info.json",
    )


def packages(info: dict[str, Any]) -> list[Package]:
    """The packages of an image; several of one name stay several."""
    return [
        Package(
            manager=entry.get("manager", ""),
            name=entry["name"],
            version=full_version(entry),
            arch=entry.get("arch", ""),
        )
        for entry in info["packages"]
    ]


def full_version(entry: dict[str, Any]) -> str:
    """1:2.34-5: epoch unless 0, version, release unless empty."""
    epoch, release = str(entry.get("epoch") or "0"), entry.get("release")
    return (
        ("" if epoch in {"0", "(none)"} else f"{epoch}:")
        + str(entry["version"])
        + (f"-{release}" if release else "")
    )
