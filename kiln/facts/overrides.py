"""The facts of overlays: `facts/<name>.yaml` of an overlay over the table of that name.

A mapping is merged key by key. A list of entries that have a name (`type`, `id`, …) is merged by
that name. In other lists of entries the first that fits counts, so the overlay's come first. Any
other value takes the place of the table's. There is no schema of tables: a new entry must look like
its neighbours, have the keys that all of them have, and none that none of them has. `forms` has
the fields for which that is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.overlay import overlay_mistake, shown_path
from kiln.base.paths import KNOWLEDGE
from kiln.base.yaml_files import Located, Path_, dotted, load_yaml
from kiln.facts.forms import Read, UnlikeError, check_forms, is_day

# Keys that name an entry of a list.
_NAMES = ("type", "id", "gpu", "name")
# May appear in every entry.
_ANYWHERE = ("source", "confirmed", "unsure")
# May appear in the `when` of a row of names or URLs, also where no other row needs it.
_VERSIONS = ("from", "below")
_WITH_VERSIONS = ("packages", "downloads")
# Tables that are not facts about images: what this program itself needs or asks for.
TABLES_OF_THE_PROGRAM = {"host-packages", "iam", "iam_publish", "packer", "program_messages", "xid"}


def with_overrides(
    table: dict[str, Any], name: str, folders: Sequence[Path], read: Read
) -> dict[str, Any]:
    """A table with what overlays say of it; `read` gives the other tables.

    Raises KilnError (exit status 2) with file and line for what does not look like the table or
    cannot be right, and for a file of an overlay that is named like no table.
    """
    for folder in folders:
        _check_names(folder / "facts")
        path = folder / "facts" / f"{name}.yaml"
        if path.exists():
            document = load_yaml(path, shown_path(path))
            data = {} if document.data is None else document.data
            try:
                _fits(data, table, [table], ())
                table = _over(table, data)
                check_forms(data, table, name, read)
            except UnlikeError as wrong:
                raise _at(path, document, wrong) from None
    return table


def _check_names(facts: Path) -> None:
    tables = {path.stem for path in KNOWLEDGE.glob("*.yaml")} - TABLES_OF_THE_PROGRAM
    for path in sorted(facts.glob("*")):
        if path.suffix != ".yaml" or path.stem not in tables:
            hint = did_you_mean(path.name, [f"{name}.yaml" for name in tables])
            raise overlay_mistake(path, f"there is no table of facts {path.name}", hint)


def _at(path: Path, located: Located, wrong: UnlikeError) -> KilnError:
    place = (located.key_place if wrong.at_key else located.place)(wrong.path)
    where = f"{dotted(wrong.path)}: " if wrong.path else ""
    return overlay_mistake(path, where + wrong.message, wrong.hint, place.line, place.column)


def _fits(value: Any, base: Any, like: Sequence[Any], path: Path_) -> None:
    """Raise UnlikeError where a value looks unlike `like`, the values at its place and beside it.

    `base` is the value that it overrides; None for a new one, which must be complete.
    """
    kinds = {_kind(other) for other in like if other is not None}
    if value is None and kinds and None not in like:
        raise UnlikeError(path, "is empty: give it a value, or remove the line")
    if value is None or not kinds:
        return
    if _kind(value) not in kinds:
        hint = ""
        if kinds == {"text"} and isinstance(value, int):
            # Numbers with a dot are text for the loader, so that 6.10 is not 6.1.
            like_it = next(other for other in like if isinstance(other, str))
            hint = f"put it in quotes, like {like_it!r}"
        raise UnlikeError(path, f"must be {' or '.join(sorted(kinds))}, not {_kind(value)}", hint)
    if isinstance(value, dict):
        _fits_mapping(value, base, [other for other in like if isinstance(other, dict)], path)
    elif isinstance(value, list):
        lists = [other for other in like if isinstance(other, list)]
        items = [item for other in lists for item in other]
        _check_twins(value, base or items, path)
        for index, item in enumerate(value):
            _fits(item, _same(item, base or []), items, (*path, index))
    elif isinstance(value, str) and not is_day(value):
        days = [other for other in like if isinstance(other, str)]
        if days and all(_DAY.fullmatch(other) for other in days):
            raise UnlikeError(path, f"{value!r} is not a day or a month such as {days[0]}")


def _fits_mapping(
    value: dict[Any, Any], base: Any, like: list[dict[Any, Any]], path: Path_
) -> None:
    here = base if isinstance(base, dict) else {}
    if _is_collection(path, like):
        beside = [entry for other in like for entry in other.values()]
        for key, entry in value.items():
            _fits(entry, here.get(key), beside, (*path, str(key)))
        return
    keys = {str(key) for other in like for key in other}
    for key, entry in value.items():
        name = str(key)
        extra = name in _ANYWHERE or name.endswith(("_source", "_confirmed"))
        if path[-1:] == ("when",) and path[0] in _WITH_VERSIONS:
            extra = extra or name in _VERSIONS
        if name not in keys and not extra:
            what = f"there is no key {name!r} here"
            raise UnlikeError((*path, name), what, did_you_mean(name, keys), at_key=True)
        beside = [other[key] for other in like if key in other]
        _fits(entry, here.get(key), beside, (*path, name))
    if base is None:
        always = set.intersection(*(set(map(str, other)) for other in like))
        missing = sorted(always - set(map(str, value)))
        if missing:
            what = f"lacks {', '.join(missing)}, which all entries beside it have"
            raise UnlikeError(path, what, at_key=True)


def _check_twins(value: list[Any], base: list[Any], path: Path_) -> None:
    """Refuse a second entry of the same name in one list."""
    key = _name_key(base)
    names: list[Any] = [
        item.get(key) for item in value if isinstance(item, Mapping) and key in item
    ]
    for name in names:
        if names.count(name) > 1:
            raise UnlikeError(path, f"{key} {name!r} is there twice", "keep one of them")


def _is_collection(path: Path_, like: list[dict[Any, Any]]) -> bool:
    """Are the keys of these mappings names of entries, not fields?"""
    values = [entry for other in like for entry in other.values()]
    if not path:
        return False
    named_by_numbers = all(str(key)[:1].isdigit() for other in like for key in other)
    entries = all(isinstance(entry, dict | list) for entry in values)
    return path == ("sources",) or named_by_numbers or entries


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "text")


_KINDS = {dict: "a mapping", list: "a list", bool: "true or false", int: "a number"}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?")


def _over(base: Any, own: Any) -> Any:
    """A value of the table with an overlay's over it."""
    if isinstance(base, dict) and isinstance(own, dict):
        return {**base, **{key: _over(base.get(key), entry) for key, entry in own.items()}}
    if (
        isinstance(base, list)
        and isinstance(own, list)
        and isinstance((own or base or [0])[0], dict)
    ):
        return _over_list(base, own)
    return own


def _over_list(base: list[Any], own: list[Any]) -> list[Any]:
    if _name_key(base) is None:
        return [*own, *base]
    fresh = [entry for entry in own if _same(entry, base) is None]
    changed = {id(twin): entry for entry in own if (twin := _same(entry, base)) is not None}
    kept = [_over(entry, changed[id(entry)]) if id(entry) in changed else entry for entry in base]
    return [*kept, *fresh]


def _name_key(entries: list[Any]) -> str | None:
    """The key that identifies the entries of a list, if they have one."""
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    for key in _NAMES:
        if all(key in entry for entry in entries):
            return key
    return None


def _same(entry: Any, base: list[Any]) -> Any:
    """The entry of `base` with the name of this one; None if there is none."""
    key = _name_key(base)
    if key is None or not isinstance(entry, Mapping):
        return None
    return next((other for other in base if other[key] == entry.get(key)), None)
