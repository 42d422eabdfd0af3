"""A lock file of one row, and files whose entries in it tests know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kiln.base.paths import ROOT
from kiln.facts.lock_file import read_lock_file
from kiln.matrix.load import load_recipes
from kiln.packer import lock

RECIPES = load_recipes(ROOT / "amis.yaml")
CLASSIC = next(
    recipe for recipe in RECIPES if (recipe.distro.id, recipe.stack) == ("al2", "classic")
)
EMPTY: dict[str, Any] = {"artifacts": [], "packages": []}
# Nobody has published its hash.
PLUGIN = (
    "https://github.com/aws/aws-ofi-nccl/releases/download/v1.9.2-aws/aws-ofi-nccl-1.9.2-aws.tar.gz"
)
EFA = "https://efa-installer.amazonaws.com/aws-efa-installer-1.34.0.tar.gz"
EFA_KEY = "https://efa-installer.amazonaws.com/aws-efa-installer.key"
EFA_SHA256 = "bd68839e741b0afd3ec2e37d50603803cfa7a279c120f0a736cc57c2ff2d7fdc"


def locked_file(folder: Path) -> Path:
    """The lock of CLASSIC, in a file of the folder."""
    path = folder / "amis.lock.yaml"
    lock.update_lock([CLASSIC], path)
    return path


def artifact(path: Path, url: str) -> dict[str, Any]:
    """The entry of a URL in a lock file."""
    entries: list[dict[str, Any]] = read_lock_file(path)["artifacts"]
    return next(entry for entry in entries if entry["url"] == url)
