"""Repositories as `./invoke preflight --record` found them: kiln/facts/knowledge/indexes/.

Where a vendor's repository is recorded, the lab serves the names and versions of the record with
their dependencies, and no others. A stand-in gives a package its content if there is one of the
same version; any other package is empty. The lab's own helpers (kiln-lab-…) stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kiln.base.vocabulary import UNAME_ARCH
from kiln.facts.indexes import RecordedIndex, RecordedPackage, recorded_indexes
from lab.mirror.repos import Repo
from lab.packages import model
from lab.packages.model import Package

_OWN = "kiln-lab-"


def records(url: str, arch: str) -> tuple[RecordedIndex, ...]:
    """What is recorded of the repository at a URL, for `arch` as `uname -m` names it.

    Several distributions may have asked the same repository.
    """
    return tuple(
        index
        for index in recorded_indexes()
        if index.url.rstrip("/") == url and UNAME_ARCH[index.arch] == arch
    )


def as_recorded(repo: Repo, indexes: Sequence[RecordedIndex], arch: str) -> Repo:
    """The repository with the packages of its records; as it is if there is no record."""
    if not indexes:
        return repo
    wanted = _merged(indexes)
    recorded_names = {
        *wanted,
        *(_named(p) for entries in wanted.values() for e in entries for p in e.provides),
    }
    stand_ins = {(package.name, package.version): package for package in repo.packages}
    renamed: dict[str, list[str]] = {}
    packages = [package for package in repo.packages if package.name.startswith(_OWN)]
    for name, entries in wanted.items():
        for entry in entries:
            epoch, version, release = _parts(entry.version)
            stand_in = stand_ins.get((name, version))
            package = replace(
                stand_in or _empty(name, version, arch),
                epoch=epoch,
                release=release,
                requires=_requires(entry, stand_in, recorded_names),
                provides=entry.provides,
            )
            packages.append(package)
            if stand_in:
                renamed.setdefault(_artifact(stand_in), []).append(_artifact(package))
    modules = "".join(_artifacts(repo.modules.splitlines(keepends=True), renamed))
    return replace(repo, packages=tuple(packages), modules=modules)


def _merged(indexes: Iterable[RecordedIndex]) -> dict[str, list[RecordedPackage]]:
    """Package name → its entries in any of the records, each version once."""
    merged: dict[str, dict[str, RecordedPackage]] = {}
    for index in indexes:
        for name, entries in index.packages.items():
            merged.setdefault(name, {}).update({entry.version: entry for entry in entries})
    return {name: list(merged[name].values()) for name in sorted(merged)}


def _requires(
    entry: RecordedPackage, stand_in: Package | None, recorded_names: set[str]
) -> tuple[str, ...]:
    """The recorded dependencies on this repository, and the stand-in's on the lab and on the
    distribution, whose archive the lab has in a form of its own."""
    vendor = [
        need for need in entry.requires if recorded_names & set(map(_named, need.split(" | ")))
    ]
    local = (
        [need for need in stand_in.requires if _named(need) not in recorded_names]
        if stand_in
        else []
    )
    return tuple(dict.fromkeys([*vendor, *local]))


def _named(word: str) -> str:
    """The name in a dependency: of `a (= 1)`, `a = 1`, `a:any`; "" for one with an `if`."""
    return re.split(r"[\s(:]", word.strip(), maxsplit=1)[0]


def _parts(version: str) -> tuple[int, str, str]:
    """Epoch, version and revision of 3:580.178.04-1.amzn2023."""
    epoch, _, rest = version.rpartition(":")
    upstream, _, release = rest.rpartition("-")
    return int(epoch or 0), upstream or rest, release if upstream else ""


def _empty(name: str, version: str, arch: str) -> Package:
    return Package(
        name=name,
        version=version,
        release="",
        arch=arch,
        summary=f"{model.STAND_IN}: {name}, without content; its name and version are recorded",
    )


def _artifact(package: Package) -> str:
    return f"{package.name}-{package.epoch}:{package.version}-{package.release}.{package.arch}"


def _artifacts(lines: Iterable[str], renamed: dict[str, list[str]]) -> Iterable[str]:
    """The lines of a modules.yaml with the recorded packages instead of the stand-ins."""
    for line in lines:
        start, dash, artifact = line.rstrip("\n").partition("- ")
        if dash and re.fullmatch(r"[\w.+-]+-\d+:\S+", artifact) and _OWN not in artifact:
            yield from (f"{start}- {new}\n" for new in renamed.get(artifact, ()))
        else:
            yield line
