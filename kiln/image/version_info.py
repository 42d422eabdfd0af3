"""Reads `/etc/kiln/version-info.json`, which lists what is on an image. Its format is described in
provisioners/lib/version_info.py, which writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.pipeline import record, records


def load_version_info(name: str) -> tuple[dict[str, Any], record.Record | None]:
    """The version-info and, if known, the record of an image.

    `name` is a build, as for `find_record`, or the path of a copy of /etc/kiln/version-info.json.
    Raises KilnError (exit status 2) if there is no such build, or if it holds no version-info.
    """
    path = Path(name)
    if path.is_file():
        data = record.document(path)
        if isinstance(data.get("packages"), list):
            return of(data, name), None
    build = records.find_record(name)
    return of({"versions": build.versions}, name), build


@dataclass(frozen=True)
class Package:
    """An installed package. `version` is the full one: epoch (unless 0), version, release."""

    manager: str
    name: str
    version: str
    arch: str


def of(data: dict[str, Any], called: str = "the record") -> dict[str, Any]:
    """The version-info in a build record, or `data` itself if it is one.

    `called` names it in messages. Raises KilnError (exit status 2) if there is none, or if its
    format is not that of a bake.
    """
    for candidate in (data.get("versions"), data):
        if isinstance(candidate, dict) and isinstance(candidate.get("packages"), list):
            for mistake in _wrong(candidate):
                raise KilnError(f"{called}: {mistake}", hint=_NOT_OURS)
            return candidate
    raise KilnError(
        f"{called} holds no version-info",
        hint="give a build record, or a copy of /etc/kiln/version-info.json",
    )


_NOT_OURS = "give a build record, or /etc/kiln/version-info.json, as a bake wrote it"
# The fields that each part must have for its readers.
_LISTS = {
    "packages": ("name", "version", "release"),
    "modules": ("name", "version", "srcversion", "kernel", "path"),
    "runfiles": ("name", "version"),
    "units": ("name", "state"),
    "downloads": ("url", "sha256"),
    "upgradable": ("name", "version"),
}
_MAPPINGS = {
    "os": ("id", "version_id", "name"),
    "kernel": (),
    "components": (),
    "efa": ("installer", "packages"),
    "paths": (),
    "files": (),
    "sysctls": (),
    "boot": (),
}


def _wrong(info: dict[str, Any]) -> Iterator[str]:
    """Where the format is wrong. A part may be missing or empty."""
    for key, needed in _LISTS.items():
        entries = info.get(key) or []
        if not isinstance(entries, list):
            yield f"`{key}` is not a list"
            continue
        for index, entry in enumerate(entries):
            yield from _lacks(f"{key}[{index}]", entry, needed)
    for key, needed in _MAPPINGS.items():
        if info.get(key):
            yield from _lacks(key, info[key], needed)
    yield from _wrong_values(info)
    components = info.get("components")
    for name, part in components.items() if isinstance(components, dict) else ():
        yield from _lacks(f"components.{name}", part, ())


def _wrong_values(info: dict[str, Any]) -> Iterator[str]:
    """Where a value is not text, and where a hash is not one."""
    for key, names in _TEXTS.items():
        for index, entry in enumerate(info.get(key) or []):
            for name in names if isinstance(entry, dict) else ():
                if isinstance(entry.get(name), dict | list):
                    yield f"`{key}[{index}].{name}` is not text"
    for index, entry in enumerate(info.get("downloads") or []):
        if isinstance(entry, dict):
            for name, form in (("url", None), ("sha256", vocabulary.SHA256)):
                value = entry.get(name)
                if not isinstance(value, str) or (form and not form.fits(value)):
                    yield f"`downloads[{index}].{name}` {vocabulary.shown(value)} is malformed"
    yield from _wrong_texts(info)
    if isinstance(info.get("arch"), dict | list):
        yield "`arch` is not text"
    held = info.get("held") or []
    if not isinstance(held, list) or not all(isinstance(name, str) for name in held):
        yield "`held` is not a list of names"


def _wrong_texts(info: dict[str, Any]) -> Iterator[str]:
    for key in ("files", "sysctls", "boot"):
        for name, value in info[key].items() if isinstance(info.get(key), dict) else ():
            if not isinstance(value, str):
                yield f"`{key}.{name}` is not text"


# The values that are text, numbers or null, besides those that a part needs.
_TEXTS = {
    **_LISTS,
    "packages": ("manager", "name", "epoch", "version", "release", "arch"),
    "modules": (*_LISTS["modules"], "vermagic", "license"),
}


def _lacks(where: str, part: Any, needed: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(part, dict):
        yield f"`{where}` is not a mapping"
    elif missing := [name for name in needed if name not in part]:
        yield f"`{where}` lacks {', '.join(missing)}"


@contextmanager
def reading(called: str) -> Iterator[None]:
    """While inside, turn errors from malformed values into KilnError (exit status 2).

    For code that reads a user's file, where a value may have a type that no bake writes.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KilnError(f"{called}: a value is malformed: {error}", hint=_NOT_OURS) from error


def installed_packages(info: dict[str, Any]) -> list[Package]:
    """The packages of an image; a name may occur several times."""
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
    """A full version such as 1:2.34-5: epoch unless 0, version, release unless empty."""
    epoch, release = str(entry.get("epoch") or "0"), entry.get("release")
    return (
        ("" if epoch in {"0", "(none)"} else f"{epoch}:")
        + str(entry["version"])
        + (f"-{release}" if release else "")
    )
