"""The tables of facts as plain data: `kiln/facts/knowledge/<name>.yaml`, with versions as text.

`facts/<name>.yaml` of an overlay is laid over the table of that name: a mapping key by key, a list
of entries with a name (`type`, `id`, …) by that name. In other lists of entries the first that fits
counts, so the overlay's come first. Any other value takes the place of the table's.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import overlay, yaml_files
from kiln.base.errors import did_you_mean
from kiln.base.paths import KNOWLEDGE
from kiln.base.vocabulary import masked
from kiln.base.yaml_files import Path_, load_yaml, validated

# Keys that name an entry of a list.
_NAMES = ("type", "id", "name")


@cache
def table(name: str) -> dict[str, Any]:
    """The plain data of `kiln/facts/knowledge/<name>.yaml` and the overlays'. Versions are text."""
    merged = read_table(KNOWLEDGE / f"{name}.yaml")
    for folder in overlay.overlays():
        merged = with_overlay(merged, name, folder)
    return merged


def with_overlay(ours: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """A table with what an overlay says of it, checked by the table's model."""
    from kiln.facts.models import TABLES

    for path in sorted((folder / "facts").glob("*")):
        if path.suffix != ".yaml" or path.stem not in TABLES:
            hint = did_you_mean(path.name, [f"{known}.yaml" for known in TABLES])
            raise overlay.overlay_mistake(path, f"there is no table of facts {path.name}", hint)
    path = folder / "facts" / f"{name}.yaml"
    if not path.exists():
        return ours
    document = load_yaml(path, overlay.shown_path(path))
    own = {} if document.data is None else document.data
    merged = _over(ours, own)

    def in_overlay(place: Path_) -> Path_:
        return _path_in(own, merged, place)

    # A table that refers to another one is checked against the checkout's and this overlay's.
    context = {"whole": merged, "read": lambda other: merged if other == name else table(other)}
    validated(TABLES[name], document, merged, context=context, locate=in_overlay)
    return dict(merged)


def _over(base: Any, own: Any) -> Any:
    """A value of the table with an overlay's over it."""
    if isinstance(base, dict) and isinstance(own, dict):
        # Keys of a few tables are numbers in ours.
        names = {str(key): key for key in base}
        return {
            **base,
            **{names.get(k, k): _over(base.get(names.get(k, k)), v) for k, v in own.items()},
        }
    if not isinstance(base, list) or not isinstance(own, list):
        return own
    if not own or not all(isinstance(entry, dict) for entry in (*base, *own)):
        return own or base
    name = _name_key(base)
    if name is None:
        return [*own, *base]
    known = [entry[name] for entry in base]
    changed = {entry[name]: entry for entry in own if entry.get(name) in known}
    kept = [_over(entry, changed.get(entry[name], {})) for entry in base]
    return [*kept, *(entry for entry in own if entry.get(name) not in known)]


def _name_key(entries: list[Any]) -> str | None:
    """The key that names the entries of a list, if they have one."""
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return None
    return next((key for key in _NAMES if all(key in entry for entry in entries)), None)


def _path_in(own: Any, merged: Any, path: Path_) -> Path_:
    """Return the place of a merged table's path in the overlay's file, as far as it has it."""
    found: list[str | int] = []
    for part in path:
        key: str | int | None = str(part) if isinstance(own, dict) and str(part) in own else None
        if isinstance(own, list) and isinstance(merged, list) and isinstance(part, int):
            entry, name = merged[part], _name_key(merged)
            alike = [entry is each or bool(name and each.get(name) == entry[name]) for each in own]
            key = alike.index(True) if True in alike else None
        if key is None:
            break
        found.append(key)
        own, merged = own[key], merged[part]
    return tuple(found)


def read_table(path: Path) -> dict[str, Any]:
    """The plain data of any YAML file of this kind."""
    return dict(yaml_files.read_plain(path, versions_as_text=True))


def confirmed(entry: Mapping[str, Any]) -> bool:
    """Return True if a public source confirms this entry of `knowledge/`. Only `confirmed: false`
    says no."""
    return bool(entry.get("confirmed", True))


@dataclass(frozen=True)
class UsedRow:
    """A row of a table that a look-up chose: the file, the row's key, and the row's source with
    the file's short names expanded (empty if it has none)."""

    file: str
    key: str
    source: str
    confirmed: bool


def used_row(file: str, key: str, row: Mapping[str, Any]) -> UsedRow:
    """Return a component's note of a row that it looked up."""
    names = table(file.removesuffix(".yaml")).get("sources", {})
    return UsedRow(file, key, full_source(row.get("source", ""), names), confirmed(row))


def full_source(source: str, names: Mapping[str, str]) -> str:
    """A `source` with the short names from its file's `sources` expanded."""
    return "; ".join(names.get(part, part) for part in source.split("; "))


def last_day(text: str | None) -> date | None:
    """2028-06-30 as a date; 2028-06 as the month's last day; None stays None."""
    if text is None:
        return None
    if len(text) == len("2028-06"):
        year, month = (int(part) for part in text.split("-"))
        return date(year, month, monthrange(year, month)[1])
    return date.fromisoformat(text)


@cache
def read_messages() -> dict[str, Any]:
    """The messages of other programs, without overlays: they are no facts about a team's images."""
    return read_table(KNOWLEDGE / "program_messages.yaml")


@cache
def message(program: str, name: str) -> re.Pattern[str]:
    """The pattern of a program's message, to be searched for in its lines."""
    return re.compile(read_messages()[program][name]["pattern"])


def http_reason(error: Exception) -> str:
    """Return why an HTTP request failed, in a few words, without a password of a URL."""
    text, rows = str(error), read_messages()["requests"].values()
    known = (str(row["reason"]) for row in rows if re.search(row["pattern"], text))
    return next(known, masked(text, whole=True))
