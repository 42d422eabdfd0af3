"""Reads `amis.lock.yaml`: the only reader, and the format of the file.

`kiln/packer/lock.py` derives and writes it and says what its entries mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from kiln.base import overlay, paths, vocabulary
from kiln.base.account import Block
from kiln.base.errors import KilnError
from kiln.base.yaml_files import load_yaml, validated

# What identifies an artifact: its bytes, a key's fingerprint, or a signature's file and key.
BYTES = {"version", "sha256"}
KEY, SIGNATURE = {"fingerprint"}, {"signs", "signed_by"}
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


def _each_url_once(artifacts: tuple[LockedArtifact, ...]) -> tuple[LockedArtifact, ...]:
    urls = [artifact.url for artifact in artifacts]
    if twice := [url for url in urls if urls.count(url) > 1]:
        raise ValueError(f"{vocabulary.quoted(twice[0])} is listed twice")
    return artifacts


class LockFile(Block):
    """The whole file."""

    artifacts: Annotated[tuple[LockedArtifact, ...], AfterValidator(_each_url_once)]
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
        raise KilnError(
            error.message, hint=restore(path), place=error.place, findings=error.findings
        ) from None
    return {**document.data, "packages": document.data.get("packages", [])}


def restore(path: Path | None = None) -> str:
    """What to do about a broken lock file: the advice, with the file that is meant."""
    path = path or paths.lock_file()
    if path.is_relative_to(paths.ROOT):
        return f"restore it: git checkout {overlay.shown_path(path)}"
    return f"restore {path} from its repository or a backup"


def locked_hashes() -> Mapping[str, str]:
    """URL → SHA-256 of every download whose hash the lock file knows."""
    return {
        item["url"]: item["sha256"] for item in read_lock_file()["artifacts"] if item.get("sha256")
    }
