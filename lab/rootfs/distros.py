"""`basefiles/distros.yaml`: what makes the common tree look like a distribution on EC2."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base import yaml_files
from kiln.base.errors import KilnError, did_you_mean
from lab.machine.own_kernel import disk

FILES = Path(__file__).resolve().parent / "basefiles"


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = yaml_files.read_plain(FILES / "distros.yaml")
    return content


def ids() -> list[str]:
    """The distributions that the lab has guests for."""
    return list(_file()["distros"])


def spec(distro_id: str) -> dict[str, Any]:
    """A distribution's entry, joined with its facts. Raises KilnError when there is none."""
    distros: dict[str, dict[str, Any]] = _file()["distros"]
    if distro_id not in distros:
        raise KilnError(
            f"the lab has no base for distribution {distro_id!r}",
            hint=f"{did_you_mean(distro_id, distros)}; a new one is baked in AWS, or after its "
            "identity was added to lab/rootfs/basefiles/distros.yaml",
        )
    distro = facts.distro(distro_id)
    entry = {**{key: distro[key] for key in ("name", "family", "ssh_user")}, **distros[distro_id]}
    if entry["family"] == "al":
        entry["os_release"] = {**entry["os_release"], "SUPPORT_END": distro["end_of_life"]}
    return entry


def root() -> dict[str, str]:
    """`uuid` of the root's file system, and `partuuid` of its partition."""
    entry: dict[str, str] = _file()["root"]
    return entry


def on_own_kernel() -> disk.Root:
    """Return the parts of the base for a disk that boots its own kernel."""
    ids, common = root(), FILES / "common"
    files = sorted(file for file in (common / "etc/systemd").rglob("*") if file.is_file())
    return disk.Root(
        uuid=ids["uuid"],
        partuuid=ids["partuuid"],
        masked=tree()["mask"],
        of_containers=[f"/{file.relative_to(common)}" for file in files],
    )


def tree() -> dict[str, Any]:
    """Return how the common tree is made."""
    entry: dict[str, Any] = _file()["tree"]
    return entry
