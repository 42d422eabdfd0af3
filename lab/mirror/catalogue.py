"""`catalogue.yaml`, typed: which versions the mirror has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kiln.base import paths
from kiln.base.errors import KilnError
from kiln.matrix import load

_FILE = Path(__file__).resolve().parent / "catalogue.yaml"


@dataclass(frozen=True)
class Driver:
    """One driver version: its branch, the CUDA it shows, and the kernel modules it has."""

    version: str
    branch: int
    cuda: str
    open: bool
    proprietary: bool


@cache
def data() -> dict[str, Any]:
    """The file as it is."""
    found: dict[str, Any] = yaml.safe_load(_FILE.read_text())
    return found


def driver(version: str) -> Driver | None:
    """What is known of a driver version, None when the vendor has none of that number."""
    branch = data()["drivers"].get(version.split(".", 1)[0])
    if branch is None or version not in branch["versions"]:
        return None
    return Driver(
        version=version,
        branch=int(version.split(".", 1)[0]),
        cuda=branch["cuda"],
        open=branch["open"],
        proprietary=branch["proprietary"],
    )


def named() -> frozenset[str]:
    """The versions that the matrix names, as of now; empty where the matrix cannot be read."""
    file = paths.matrix_file()
    return _named(file, file.stat().st_mtime_ns) if file.exists() else frozenset()


@cache
def _named(_file: Path, _changed: int) -> frozenset[str]:
    try:
        recipes = load.load_recipes()
    except KilnError:
        return frozenset()
    fields = ("driver", "cuda", "cudnn", "nccl", "dcgm", "container_toolkit", "cloudwatch_agent")
    return frozenset(str(value) for r in recipes for f in fields if (value := getattr(r, f)))


def choose(
    versions: Iterable[str], group: Callable[[str], str], wanted: frozenset[str]
) -> list[str]:
    """Of many versions the newest of each group, and those that are wanted.

    A repository with all that a vendor ever published would take a minute to make.
    """
    newest: dict[str, str] = {}
    known = list(versions)
    for version in known:
        newest[group(version)] = version
    return [v for v in known if v in wanted or newest[group(v)] == v]
