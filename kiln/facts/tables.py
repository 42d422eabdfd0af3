"""The tables of facts as plain data: `kiln/facts/knowledge/<name>.yaml`, with versions as text."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import overlay, yaml_files
from kiln.base.findings import Place
from kiln.base.paths import KNOWLEDGE
from kiln.base.yaml_files import load_yaml
from kiln.facts import overrides


@cache
def table(name: str) -> dict[str, Any]:
    """The plain data of `kiln/facts/knowledge/<name>.yaml` and the overlays'. Versions are text."""
    ours = read_table(KNOWLEDGE / f"{name}.yaml")
    return overrides.with_overrides(ours, name, overlay.overlays(), table)


def read_table(path: Path) -> dict[str, Any]:
    """The plain data of any YAML file of this kind."""
    data: dict[str, Any] = yaml_files.read_plain(path, versions_as_text=True)
    return data


def place_of_text(file: str | Path, text: str) -> Place:
    """Where a text of a table stands, in the overlay that counts or in ours; `file` is the table's
    name with `.yaml`, or the path of any other YAML file."""
    files = [file] if isinstance(file, Path) else _files_of(file)
    for path in files:
        place = load_yaml(path, overlay.shown_path(path)).place_of_text(text)
        if place:
            return place
    return Place(overlay.shown_path(files[-1]))


def _files_of(file: str) -> list[Path]:
    return [*reversed(overlay.own_files(f"facts/{file}")), KNOWLEDGE / file]


def confirmed(entry: Mapping[str, Any]) -> bool:
    """Does a public source confirm this entry of `knowledge/`? Only `confirmed: false` says no."""
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
    """What a component remembers of a row that it looked up."""
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
