"""`./invoke preflight --record`: what the repositories have, into kiln/facts/knowledge/indexes/."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from kiln import facts
from kiln.facts.indexes import index_file, recorded_index
from kiln.facts.tables import read_table
from kiln.preflight.ask import RootAnswers
from kiln.preflight.indexes import SIGNED, Index
from kiln.preflight.package_root import Offer, PackageRoot, Relations

_HEAD = """\
# What one repository has of the packages that a component may ask for, and a vendor's repository of
# those that they need. Written by `./invoke preflight --record`; do not edit. `absent`: asked for,
# and not there.
"""
_SCHEMA = "kiln/index v1"
_VENDORS = {entry["name"] for entry in facts.table("archives")["vendors"].values()}


def record_roots(roots: Iterable[RootAnswers], today: date) -> list[Path]:
    """Write what each repository that answered has; the files that changed.

    A repository that did not answer keeps what was recorded of it before.
    """
    written = []
    for distro, arch, same in _by_machine(roots):
        demanded = {answer.package.name for w in same for r in w.rows for answer in r.packages}
        for root, indexes in _each_repository(same).items():
            parts = [_part(distro, arch, root, index, demanded, same) for index in indexes]
            for part, data in _recorded(root, parts, today):
                if _save(part.path, data):
                    written.append(part.path)
    return written


@dataclass(frozen=True)
class _Part:
    """A repository, and the packages of its root that may be recorded of it."""

    distro: str
    arch: str
    index: Index
    demanded: frozenset[str]
    names: tuple[str, ...]

    @property
    def path(self) -> Path:
        return index_file(self.distro, self.arch, self.index.entry.name)


def _part(
    distro: str,
    arch: str,
    root: PackageRoot,
    index: Index,
    demanded: Iterable[str],
    same: Iterable[RootAnswers],
) -> _Part:
    before = recorded_index(distro, arch, index.entry.name)
    asked_for = frozenset(demanded) | (before.absent if before else frozenset())
    # The lab serves a vendor's repository as it is recorded, and nothing else.
    wanted = asked_for | (_needed(same) if index.entry.name in _VENDORS else set())
    forms = _forms(distro)
    names = {name for name in root.names if name in wanted or forms.fullmatch(name)}
    return _Part(distro, arch, index, asked_for, tuple(sorted(names)))


def _by_machine(
    roots: Iterable[RootAnswers],
) -> list[tuple[str, str, list[RootAnswers]]]:
    groups: dict[tuple[str, str], list[RootAnswers]] = {}
    for root in roots:
        groups.setdefault((root.distro, root.arch), []).append(root)
    return [(distro, arch, group) for (distro, arch), group in sorted(groups.items())]


def _each_repository(roots: Sequence[RootAnswers]) -> dict[PackageRoot, list[Index]]:
    """Each repository that answered, with a root that has it."""
    indexes: dict[PackageRoot, list[Index]] = {}
    names: set[str] = set()
    for answers in roots:
        for index in answers.indexes:
            if answers.root is not None and index.entry.name not in names:
                names.add(index.entry.name)
                indexes.setdefault(answers.root, []).append(index)
    return indexes


def _needed(roots: Iterable[RootAnswers]) -> set[str]:
    """The names of all packages that the solver would install on the rows of these roots."""
    rows = [row for root in roots for row in root.rows]
    return {
        package.partition("=")[0]
        for row in rows
        for answer in row.resolved
        for package in answer.packages
    }


def _recorded(
    root: PackageRoot, parts: Sequence[_Part], today: date
) -> Iterator[tuple[_Part, dict[str, Any]]]:
    """What is to be written of each repository: the package tool is asked once for all of them."""
    names = sorted({name for part in parts for name in part.names})
    offers = root.offers(names) if names else {}
    versions = [
        {name: _versions(offers.get(name, []), part.index) for name in part.names} for part in parts
    ]
    listed = {
        (name, version): None for of in versions for name, many in of.items() for version in many
    }
    relations = root.relations(listed) if listed else {}
    for part, here in zip(parts, versions, strict=True):
        yield part, _data(part, here, relations, today)


def _data(
    part: _Part,
    here: Mapping[str, Sequence[str]],
    relations: Mapping[tuple[str, str], Relations],
    today: date,
) -> dict[str, Any]:
    index = part.index
    return {
        "schema": _SCHEMA,
        "repository": index.entry.name,
        "url": index.entry.url,
        "source": index.entry.release_files()[0]
        if index.entry.kind == "apt"
        else f"{index.entry.url}/repodata/repomd.xml",
        "distro": part.distro,
        "arch": part.arch,
        "recorded": today.isoformat(),
        "signed": index.state == SIGNED,
        "checksums": dict(index.checksums),
        "absent": sorted(name for name in part.demanded if not here.get(name)),
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
