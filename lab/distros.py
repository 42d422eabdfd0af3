"""`basefiles/distros.yaml`: what makes a tree look like a distribution of EC2."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean

FILES = Path(__file__).resolve().parent / "basefiles"


@cache
def _file() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / "distros.yaml").read_text())
    return found


def ids() -> list[str]:
    """The distributions the lab can stand in for."""
    return list(_file()["distros"])


def spec(distro_id: str) -> dict[str, Any]:
    """A distribution's entry, with what is known of it; KilnError when there is none."""
    distros: dict[str, dict[str, Any]] = _file()["distros"]
    if distro_id not in distros:
        raise KilnError(
            f"the lab has no base for distribution {distro_id!r}",
            hint=did_you_mean(distro_id, distros),
        )
    known = facts.distro(distro_id)
    entry = {**{key: known[key] for key in ("name", "family", "ssh_user")}, **distros[distro_id]}
    if entry["family"] == "al":
        entry["os_release"] = {**entry["os_release"], "SUPPORT_END": known["end_of_life"]}
    return entry


def tree() -> dict[str, Any]:
    """What the common tree is made of."""
    found: dict[str, Any] = _file()["tree"]
    return found
