"""Linux distributions (`knowledge/distros.yaml`)."""

from __future__ import annotations

from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.facts.tables import table


def distro(name: str) -> dict[str, Any]:
    """The entry of a distribution in distros.yaml.

    Raises KilnError (exit status 2) for an unknown distribution, with the nearest known one.
    """
    known: dict[str, dict[str, Any]] = table("distros")["distros"]
    if name not in known:
        raise KilnError(
            f"{name} is not a known distribution",
            hint=did_you_mean(name, known)
            + " A new one is an entry in kiln/facts/knowledge/distros.yaml.",
        )
    return known[name]


def distro_names(*, with_parents: bool = False) -> list[str]:
    """The known distributions; with `with_parents` only those that AMIs can be built on."""
    known: dict[str, dict[str, Any]] = table("distros")["distros"]
    return [name for name, entry in known.items() if entry.get("parents") or not with_parents]


def relatives(name: str) -> list[str]:
    """The distributions of the same vendor, including this one."""
    vendor = distro(name)["vendor"]
    return [other for other in distro_names() if distro(other)["vendor"] == vendor]
