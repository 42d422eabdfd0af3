"""`basefiles/distros.yaml`: what makes a tree look like a distribution of EC2."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

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
    """A distribution's entry; KilnError when there is none of that name."""
    distros: dict[str, dict[str, Any]] = _file()["distros"]
    if distro_id not in distros:
        raise KilnError(
            f"the lab has no base for distribution {distro_id!r}",
            hint=did_you_mean(distro_id, distros),
        )
    return distros[distro_id]


def tree() -> dict[str, Any]:
    """What the common tree is made of."""
    found: dict[str, Any] = _file()["tree"]
    return found
