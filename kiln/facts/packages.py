"""Distributions (`distros.yaml`), the names of their packages (`packages.yaml`), published hashes
(`checksums.yaml`), and the reader of `amis.lock.yaml`.

`kiln/packer/lock.py` derives and writes the lock file and says what its entries mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import model_validator

from kiln.base import overlay, paths, versions, vocabulary
from kiln.base.account import Block
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.vocabulary import read_stamp
from kiln.base.yaml_files import load_yaml, validated
from kiln.facts.tables import UsedRow, confirmed, table, used_row


def distro(name: str) -> dict[str, Any]:
    """The entry of a distribution in distros.yaml."""
    distros: dict[str, dict[str, Any]] = table("distros")["distros"]
    if name not in distros:
        raise KilnError(
            f"{name} is not a known distribution",
            hint=did_you_mean(name, distros)
            + "\n  a new one is an entry in kiln/facts/knowledge/distros.yaml",
        )
    return distros[name]


def distro_names(*, with_parents: bool = False) -> list[str]:
    """The known distributions; with `with_parents` only those that AMIs can be built on."""
    distros: dict[str, dict[str, Any]] = table("distros")["distros"]
    return [name for name, entry in distros.items() if entry.get("parents") or not with_parents]


def parent_disk(flavor: str) -> int:
    """GiB of the snapshot of a flavor's parent AMI; a distribution's own has 8."""
    return int(table("distros")["flavors"].get(flavor, {}).get("disk", 8))


@dataclass(frozen=True)
class PackageSnapshots:
    """A service that has a distribution's archive as it was at a time or at a release.

    `kind`: `releasever` (dnf's variable chooses the release) or `apt` (lines of sources.list, made
    of `templates`, take the place of the parent's). `form` is the value's regular expression,
    `what` the same in words; `first` is the first value that the service has, where it is known.
    """

    name: str
    kind: str
    form: str
    what: str
    first: str = ""
    templates: tuple[str, ...] = ()

    def refusal(self, value: str) -> str:
        """Return why the service cannot have this value; empty when it can."""
        if not re.fullmatch(self.form, value):
            return f"{value!r} is not {self.what}"
        try:
            if self.kind == "apt":
                read_stamp(value)
        except ValueError:
            return f"{value!r} is not {self.what}: there is no such day or time"
        if self.first and value < self.first:
            return f"{value!r} is before {self.first}, the first that the service has"
        return ""

    def lines(self, distro_name: str, value: str) -> list[str]:
        """The lines of sources.list that stand for the archive at `value`."""
        codename = distro(distro_name).get("codename", "")
        return [line.format(snapshot=value, codename=codename) for line in self.templates]


def package_snapshots(distro_name: str) -> PackageSnapshots | None:
    """Return the service with this distribution's archive as it was; None for a distribution
    without."""
    name = distro(distro_name).get("package_snapshot")
    if name is None:
        return None
    entry = table("distros")["package_snapshots"][name]
    return PackageSnapshots(
        name=name,
        kind=entry["kind"],
        form=entry["form"],
        what=entry["what"],
        first=entry.get("from", ""),
        templates=tuple(entry.get("lines", ())),
    )


@dataclass(frozen=True)
class Packages:
    """Packages of one component: `names` are installed at its version, `unversioned` are not.

    `built_for` is the CUDA version in the packages' revision; empty if there is none. `row` is
    where the names stand.
    """

    names: tuple[str, ...]
    unversioned: tuple[str, ...]
    built_for: str
    row: UsedRow


def archive_packages(component: str, version: str, **fields: str) -> Packages | None:
    """A component's packages at a version, from packages.yaml; None if the archive has none.

    `fields` are the values that conditions and names refer to, such as `archive` and `module`.
    """
    row = first_match(table("packages")["packages"][component], version, fields)
    if row is None:
        return None

    def filled(texts: list[str]) -> tuple[str, ...]:
        return tuple(fill(component, text, version, fields) for text in texts)

    return Packages(
        names=filled(row["names"]),
        unversioned=filled(row.get("unversioned", [])),
        built_for="".join(filled([row.get("built_for", "")])),
        row=used_row("packages.yaml", component, row),
    )


def first_match(
    rows: list[dict[str, Any]], version: str, fields: dict[str, str]
) -> dict[str, Any] | None:
    """The first row whose `when` holds; None if there is none.

    `from` and `below` compare `version`; any other condition compares a field, and a list holds
    alternatives.
    """

    def holds(condition: str, value: str | list[str]) -> bool:
        if condition in ("from", "below"):
            return versions.at_least(version, str(value)) == (condition == "from")
        return fields.get(condition) in (value if isinstance(value, list) else [value])

    holding = (row for row in rows if all(holds(*item) for item in row.get("when", {}).items()))
    return next(holding, None)


def fill(key: str, text: str, version: str, fields: dict[str, str]) -> str:
    """A name or URL of a table with its `{placeholders}` filled in; `version` is empty for what has
    none, such as a component of an overlay."""
    of_version = {"version": version, "branch": versions.major(version)} if version else {}
    try:
        return text.format(**of_version, **fields)
    except KeyError as error:
        raise KilnError(f"{key}: {text!r}: there is no {error} for this component") from None


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
                source = files["source"]
                source = source if isinstance(source, str) else source[version]
                return Checksum(sha256, source.replace("{version}", version), confirmed(files))
    return None


# What identifies an artifact: its bytes, a key's fingerprint, or a signature's file and key.
BYTES = {"version", "sha256"}
KEY, SIGNATURE = {"fingerprint"}, {"signs", "signed_by"}
# What to do about a broken lock file.
RESTORE = "restore the lock file from git"
# Begins the source of a hash that a bake recorded.
SEEN_BY = "seen by "


class LockedArtifact(Block):
    """A file that a bake downloads."""

    url: str
    version: str | int | None = None
    sha256: Annotated[str, vocabulary.SHA256] | None = None
    source: str | None = None
    confirmed: bool = True
    fingerprint: str | None = None
    signs: str | None = None
    signed_by: str | None = None

    @model_validator(mode="after")
    def _identified(self) -> LockedArtifact:
        if not any(fields <= self.model_fields_set for fields in (BYTES, KEY, SIGNATURE)):
            raise ValueError(
                "an artifact needs `version` and `sha256`, a key's `fingerprint`, or what a "
                "signature `signs` and `signed_by`"
            )
        return self


class LockedRepository(Block):
    """A repository whose packages a bake installs."""

    repository: str
    signed_by: str
    packages: tuple[str, ...]


class LockFile(Block):
    """The whole file."""

    artifacts: tuple[LockedArtifact, ...]
    packages: tuple[LockedRepository, ...] = ()


def read_lock_file(path: Path | None = None) -> dict[str, Any]:
    """The plain data of the lock file (`kiln.base.paths.lock_file`); an empty lock if there is no
    file. Every entry has the fields and types that its kind must have, and nothing else."""
    path = path or paths.lock_file()
    try:
        changed = path.stat()
    except FileNotFoundError:
        return {"artifacts": [], "packages": []}
    return _read(path, changed.st_mtime_ns, changed.st_size)


# A check of the matrix asks for each download of each row.
@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> dict[str, Any]:
    """The data of a file that exists; by its time and size, so that a new file is read again."""
    try:
        document = load_yaml(path, overlay.shown_path(path))
        validated(LockFile, document)
    except KilnError as error:
        error.hint = RESTORE
        raise
    return {**document.data, "packages": document.data.get("packages", [])}


def locked_hashes() -> Mapping[str, str]:
    """URL → SHA-256 of every download whose hash the lock file knows."""
    return {
        item["url"]: item["sha256"] for item in read_lock_file()["artifacts"] if item.get("sha256")
    }
