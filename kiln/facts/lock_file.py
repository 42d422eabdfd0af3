"""Reads `amis.lock.yaml`: the only reader, and the format of the file.

`kiln/packer/lock.py` derives and writes it and says what its entries mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kiln.base import located, overlay, paths, plain_yaml, vocabulary
from kiln.base.errors import KilnError

_FILE = {"artifacts", "packages"}
# What identifies an artefact: its bytes, a key's fingerprint, or a signature's file and key.
BYTES = {"version", "sha256"}
KEY, SIGNATURE = {"fingerprint"}, {"signs", "signed_by"}
# Begins the source of a hash that a bake recorded.
SEEN_BY = "seen by "
# Each field of an artefact, its type, and the type in words.
_FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    "url": ((str,), "text"),
    "version": ((str, int), "a version"),
    "sha256": ((str, type(None)), "a sha256 (64 hexadecimal digits)"),
    "source": ((str, type(None)), "text"),
    "confirmed": ((bool,), "true or false"),
    "fingerprint": ((str,), "text"),
    "signs": ((str,), "text"),
    "signed_by": ((str,), "text"),
}
_Broken = tuple[tuple[str | int, ...], str]


def read_lock_file(path: Path | None = None) -> dict[str, Any]:
    """The data of the lock file (`kiln.base.paths.lock_file`); an empty lock if there is no file.

    Every entry has the fields and types that its kind must have, and nothing else.
    Raises KilnError (exit status 2) with file, line and column if it is not a lock file.
    """
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
        data = plain_yaml.read_plain(path, versions_as_text=True)
    # A value that YAML's types do not take (`0x_`, `!!int a`) raises what its conversion raises.
    except (KilnError, OSError, ValueError, LookupError, AttributeError, TypeError):
        raise _refused(path) from None
    if any(_broken(data)):
        raise _refused(path)
    return {**data, "packages": data.get("packages", [])}


def _refused(path: Path) -> KilnError:
    """What is wrong with a lock file, and where: it is read again, by what remembers lines."""
    try:
        document = located.load_yaml(path, overlay.shown_path(path))
    except KilnError as error:
        return KilnError(error.message, hint=restore(path), place=error.place)
    where, what = next(_broken(document.data), ((), "it is not YAML that AMI Kiln takes"))
    place = document.place(where)
    return KilnError(f"{place}: {what}", hint=restore(path), place=place)


def _broken(data: Any) -> Iterator[_Broken]:
    """The path and description of each violation of the format."""
    if not isinstance(data, dict) or not isinstance(data.get("artifacts"), list):
        yield (), "it has no list `artifacts`"
        return
    for key in sorted(data.keys() - _FILE, key=str):
        yield (key,), f"there is no key {vocabulary.quoted(key)} here"
    urls: dict[str, int] = {}
    for index, entry in enumerate(data["artifacts"]):
        yield from _broken_artifact(("artifacts", index), entry, urls)
    packages = data.get("packages", [])
    if not isinstance(packages, list):
        yield ("packages",), "`packages` is not a list"
        return
    for index, entry in enumerate(packages):
        yield from _broken_repository(("packages", index), entry)


def _broken_artifact(
    here: tuple[str | int, ...], entry: Any, urls: dict[str, int]
) -> Iterator[_Broken]:
    """Violations in one artefact; `urls` are those of the artefacts before it."""
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
        yield here, "an artefact without its `url`"
        return
    if not any(fields <= entry.keys() for fields in (BYTES, KEY, SIGNATURE)):
        yield (
            here,
            "an artefact without `version` and `sha256`, a key's `fingerprint`, or what a "
            "signature `signs` and `signed_by`",
        )
    for name, value in entry.items():
        types, words = _FIELDS.get(name, ((), ""))
        if not types:
            yield (*here, name), f"an artefact has no field {vocabulary.quoted(name)}"
        elif not isinstance(value, types) or (
            name == "sha256" and value is not None and not vocabulary.SHA256.fits(value)
        ):
            yield (*here, name), f"{vocabulary.quoted(value)} is not {words}"
    if entry["url"] in urls:
        yield (*here, "url"), f"{vocabulary.quoted(entry['url'])} is listed twice"
    urls[entry["url"]] = 1


def _broken_repository(here: tuple[str | int, ...], entry: Any) -> Iterator[_Broken]:
    """Violations in one repository and its packages."""
    if not isinstance(entry, dict) or not (
        all(isinstance(entry.get(name), str) for name in ("repository", "signed_by"))
        and isinstance(entry.get("packages"), list)
    ):
        yield here, "a repository without `repository`, `signed_by` and its `packages`"
        return
    for name in sorted(entry.keys() - {"repository", "signed_by", "packages"}, key=str):
        yield (*here, name), f"a repository has no field {vocabulary.quoted(name)}"
    for index, package in enumerate(entry["packages"]):
        if not isinstance(package, str):
            yield (*here, "packages", index), f"{vocabulary.quoted(package)} is not a package"


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
