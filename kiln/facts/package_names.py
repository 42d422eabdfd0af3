"""Names of a component's packages, by version and archive (`kiln/facts/knowledge/packages.yaml`),
and how to look them up; published hashes of vendors' files (`checksums.yaml`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.base import versions
from kiln.base.errors import KilnError, did_you_mean
from kiln.facts.tables import UsedRow, confirmed, place_of_text, table, used_row


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
    rows = table("packages")["packages"][component]
    row = first_match("packages.yaml", component, rows, version, fields)
    if row is None:
        return None

    def filled(texts: list[str]) -> tuple[str, ...]:
        return tuple(fill("packages.yaml", component, text, version, fields) for text in texts)

    return Packages(
        names=filled(row["names"]),
        unversioned=filled(row.get("unversioned", [])),
        built_for="".join(filled([row.get("built_for", "")])),
        row=used_row("packages.yaml", component, row),
    )


def first_match(
    file: str, key: str, rows: list[dict[str, Any]], version: str, fields: dict[str, str]
) -> dict[str, Any] | None:
    """The first row whose `when` holds; None if there is none.

    `from` and `below` compare `version`; any other condition compares a field, and a list holds
    alternatives.
    """

    def holds(condition: str, value: str | list[str]) -> bool:
        if condition == "from":
            return versions.at_least(version, str(value))
        if condition == "below":
            return versions.below(version, str(value))
        if condition not in fields:
            raise KilnError(
                f"kiln/facts/knowledge/{file}: {key}: there is no condition {condition!r}",
                hint=did_you_mean(condition, ["from", "below", *fields]),
            )
        return fields[condition] in (value if isinstance(value, list) else [value])

    for row in rows:
        if all(holds(*item) for item in row.get("when", {}).items()):
            return row
    return None


def fill(file: str | Path, key: str, text: str, version: str, fields: dict[str, str]) -> str:
    """A name or URL from a table, or another YAML file, with its `{placeholders}` filled in.
    `version` is empty for what has none, such as a component of an overlay.
    """
    of_version = {"version": version, "branch": versions.major(version)} if version else {}
    placeholders = {**of_version, **fields}
    try:
        return text.format(**placeholders)
    except (KeyError, IndexError, ValueError) as error:
        place = place_of_text(file, text)
        raise KilnError(
            f"{place}: {key}: {text!r} cannot be filled in: {error}",
            hint=f"its placeholders may be {', '.join(sorted(placeholders))}",
            place=place,
        ) from None


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
                source = _of_version(files["source"], version)
                return Checksum(sha256, source, confirmed(files))
    return None


def _of_version(source: str | dict[str, str], version: str) -> str:
    """The source of a version's hash: the same for all, or one for each."""
    own = source if isinstance(source, str) else source[version]
    return own.replace("{version}", version)
