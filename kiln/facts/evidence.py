"""Where it is known from that a package, file or unit exists: `kiln/facts/knowledge/evidence.yaml`.

That table holds what was seen in public: a vendor's release notes, a build script at a commit, a
user's pasted output. What an index says is in `kiln/facts/knowledge/indexes/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kiln.base.wanted_package import WantedPackage
from kiln.facts.tables import full_source, table


@dataclass(frozen=True)
class Unit:
    """A systemd unit that a vendor's package or a flavour's parent AMI brings. `source` is empty if
    nobody has seen it."""

    name: str
    component: str
    flavor: str
    distros: tuple[str, ...]
    source: str


@cache
def _seen_packages() -> tuple[tuple[tuple[str, ...], str, str, str], ...]:
    """(parts of repositories' URLs, name, version, source) of each package that was seen."""
    data = table("evidence")
    return tuple(
        (tuple(entry["at"]), *_split(package), full_source(entry["source"], data["sources"]))
        for entry in data["packages"]
        for package in entry["seen"]
    )


def _split(package: str) -> tuple[str, str]:
    name, _, version = package.partition("=")
    return name, version


def package_source(package: WantedPackage, repository_urls: tuple[str, ...]) -> str:
    """Where a package was seen in one of these repositories at the wanted version, or ""."""
    for places, name, version, source in _seen_packages():
        if name != package.name or (package.version and not package.is_met_by(version)):
            continue
        if any(place in url for place in places for url in repository_urls):
            return source
    return ""


def parent_source(package: WantedPackage, flavor: str, distro: str) -> str:
    """Where it was seen that the parent AMI of a flavour has a package at the wanted version, or
    "": what a parent has already need not be in a repository."""
    data = table("evidence")
    for entry in data["parents"]:
        here = entry["flavor"] == flavor and distro in entry["distros"]
        for name, version in map(_split, entry["seen"] if here else ()):
            if name == package.name and package.is_met_by(version):
                return full_source(entry["source"], data["sources"])
    return ""


def file_source(url: str) -> str:
    """Where a file was seen under its URL; "" if nowhere."""
    data = table("evidence")
    for entry in data["files"]:
        if url in entry["seen"]:
            return full_source(entry["source"], data["sources"])
    return ""


def signed_file(url: str) -> tuple[str, str]:
    """The file whose signature is at the URL, and where its vendor says that it is there; two
    empty texts for any other URL."""
    data = table("evidence")
    for entry in data["signatures"]:
        if url.startswith(entry["of"]) and url.endswith(entry["ending"]):
            source = full_source(entry["source"], data["sources"])
            return url.removesuffix(entry["ending"]), source
    return "", ""


@cache
def known_units() -> tuple[Unit, ...]:
    """The units of vendors' packages and of flavours' parents."""
    data = table("evidence")
    units: Mapping[str, list[dict[str, object]]] = data["units"]
    return tuple(
        Unit(
            name=name,
            component=str(entry.get("component", "")),
            flavor=str(entry.get("flavor", "")),
            distros=tuple(entry.get("distros", ())),  # type: ignore[arg-type]
            source=full_source(str(entry.get("source", "")), data["sources"]),
        )
        for name, entries in units.items()
        for entry in entries
    )
