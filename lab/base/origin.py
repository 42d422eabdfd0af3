"""Origin of a lab: the checkout, its code, the facts, the matrix."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from kiln.base import overlay
from kiln.base.paths import KNOWLEDGE, ROOT, matrix_file


def difference(running: dict[str, Any]) -> str:
    """Return how a running lab differs from the one that this checkout would start; empty if it
    does not.

    `running` is its status.
    """
    if running.get("started_from") == started_from():
        return ""
    checkout = running.get("checkout", "a checkout that it does not name")
    if is_deleted(running):
        return f"it was started from {checkout}, which no longer exists"
    if checkout != str(ROOT):
        return f"it was started from another checkout: {checkout}"
    return "it was started before the lab's code, the facts or the matrix changed in this checkout"


def is_deleted(running: dict[str, Any]) -> bool:
    """Return True if the checkout that a running lab was started from is gone."""
    return "checkout" in running and not (Path(running["checkout"]) / "lab" / "target.py").exists()


def started_from() -> str:
    """A digest of what a lab is made from: its code and stand-ins, the facts, the matrix."""
    # Other processes may be writing compiled files.
    files = [path for path in (ROOT / "lab").rglob("*") if "__pycache__" not in path.parts]
    total = hashlib.sha256()
    own = [*overlay.own_files("facts/*"), *overlay.own_files("amis.yaml")]
    own += overlay.own_files("lab/*")
    for path in sorted([*files, *KNOWLEDGE.glob("*.yaml"), matrix_file(), *own]):
        if path.is_file():
            total.update(f"{path}\0".encode() + path.read_bytes())
    return total.hexdigest()
