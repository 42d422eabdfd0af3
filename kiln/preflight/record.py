"""`./invoke preflight --record`: what the repositories have, into kiln/facts/knowledge/indexes/."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from kiln import facts
from kiln.facts.indexes import index_file, recorded_index
from kiln.facts.tables import read_table
from kiln.preflight.ask import AskedWorld
from kiln.preflight.indexes import SIGNED, Index
from kiln.preflight.world import Offer, Relations, World

_HEAD = """\
# What one repository has of the packages that a component may ask for, and a vendor's repository of
# those that they need. Written by `./invoke preflight --record`; do not edit. `absent`: asked for,
# and not there.
"""
_SCHEMA = "kiln/index v1"
_VENDORS = {entry["name"] for entry in facts.table("archives")["vendors"].values()}


def record_worlds(worlds: Iterable[AskedWorld], today: date) -> list[Path]:
    """Write what each repository that answered has; the files that changed.

    A repository that did not answer keeps what was recorded of it before.
    """
    written = []
    for distro, arch, same in _by_machine(worlds):
        demanded = {answer.package.name for w in same for r in w.rows for answer in r.packages}
        for world, index in _each_repository(same):
            path = index_file(distro, arch, index.asked.name)
            before = recorded_index(distro, arch, index.asked.name)
            asked_for = demanded | (before.absent if before else frozenset())
            # The lab serves a vendor's repository as it is recorded, and nothing else.
            needed = _needed(same) if index.asked.name in _VENDORS else set()
            data = _recorded(distro, arch, world, index, asked_for, needed, today)
            if _save(path, data):
                written.append(path)
    return written


def _by_machine(
    worlds: Iterable[AskedWorld],
) -> list[tuple[str, str, list[AskedWorld]]]:
    groups: dict[tuple[str, str], list[AskedWorld]] = {}
    for world in worlds:
        groups.setdefault((world.distro, world.arch), []).append(world)
    return [(distro, arch, group) for (distro, arch), group in sorted(groups.items())]


def _each_repository(worlds: Sequence[AskedWorld]) -> list[tuple[World, Index]]:
    """Each repository that answered, with a world that has it."""
    known: dict[str, tuple[World, Index]] = {}
    for asked in worlds:
        for index in asked.indexes:
            if asked.world is not None:
                known.setdefault(index.asked.name, (asked.world, index))
    return list(known.values())


def _needed(worlds: Iterable[AskedWorld]) -> set[str]:
    """The names of all packages that the solver would install on the rows of these worlds."""
    rows = [row for world in worlds for row in world.rows]
    return {
        package.partition("=")[0]
        for row in rows
        for answer in row.resolved
        for package in answer.packages
    }


def _recorded(
    distro: str,
    arch: str,
    world: World,
    index: Index,
    demanded: set[str],
    needed: set[str],
    today: date,
) -> dict[str, Any]:
    forms = _forms(distro)
    wanted = demanded | needed
    names = sorted(name for name in world.names() if name in wanted or forms.fullmatch(name))
    offers = world.offers(names) if names else {}
    here = {name: _versions(offers.get(name, []), index) for name in names}
    listed = [(name, version) for name, versions in here.items() for version in versions]
    relations = world.relations(listed) if listed else {}
    return {
        "schema": _SCHEMA,
        "repository": index.asked.name,
        "url": index.asked.url,
        "source": index.asked.release_files()[0]
        if index.asked.kind == "apt"
        else f"{index.asked.url}/repodata/repomd.xml",
        "distro": distro,
        "arch": arch,
        "recorded": today.isoformat(),
        "signed": index.state == SIGNED,
        "checksums": dict(index.checksums),
        "absent": sorted(name for name in demanded if not here.get(name)),
        "packages": {
            name: [
                _entry(version, relations.get((name, version), Relations())) for version in versions
            ]
            for name, versions in here.items()
            if versions
        },
    }


def _entry(version: str, relations: Relations) -> dict[str, Any]:
    provides = {"provides": list(relations.provides)} if relations.provides else {}
    return {"version": version, "requires": list(relations.requires), **provides}


def _versions(offers: Iterable[Offer], index: Index) -> list[str]:
    """The versions that this repository has, newest first."""
    at = {index.repository.url, index.repository.name}
    return list(dict.fromkeys(offer.version for offer in offers if offer.repository in at))


def _forms(distro: str) -> re.Pattern[str]:
    """The names that components may ask for on a distribution, at any branch and CUDA."""
    rows = [row for listed in facts.table("packages")["packages"].values() for row in listed]
    names = [
        name
        for row in rows
        if row.get("when", {}).get("distro", distro) == distro
        for name in (*row["names"], *row.get("unversioned", ()))
    ]
    digits = {re.sub(r"\\\{\w+\\\}", "[0-9a-z][0-9.-]*", re.escape(name)) for name in names}
    return re.compile("|".join(sorted(digits)))


def _save(path: Path, data: dict[str, Any]) -> bool:
    """Write the file unless only its date would change; whether it was written."""
    if path.is_file():
        old = read_table(path)
        if {**old, "recorded": ""} == {**data, "recorded": ""}:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(data, sort_keys=False, width=160, allow_unicode=True)
    path.write_text(_HEAD + text, encoding="utf-8")
    return True
