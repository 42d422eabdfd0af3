"""Deletes root filesystems that are no longer used, when a newer one is made."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from pathlib import Path

from lab.machine import disks
from lab.rootfs import mmdebstrap

# A build that has requested a base has this many seconds to launch an instance from it.
GRACE = 3600
_MAKING = (".making-", ".pruning-")


def use(*roots: Path) -> None:
    """Record that these were requested now."""
    for root in roots:
        stamp = _stamp(root)
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()


def prune(home: Path, now: float | None = None) -> list[str]:
    """Delete what no AMI or instance of any lab uses and no build has requested lately.

    `home` is the folder of the bases; the caller holds its lock. Returns the deleted names.
    """
    latest = (now or time.time()) - GRACE
    used = _in_use(home)
    deleted = []
    for root in sorted(home.iterdir()):
        if root.is_symlink() or not root.is_dir() or root.name == _stamp(root).parent.name:
            continue
        if root.name.startswith(_MAKING):
            _delete_part(root)
        elif not root.name.startswith(".") and root not in used and _requested(root) < latest:
            # Renamed first, so that nobody sees a part of it.
            doomed = root.rename(root.with_name(f".pruning-{root.name}"))
            shutil.rmtree(doomed, ignore_errors=True)
            _stamp(root).unlink(missing_ok=True)
            deleted.append(root.name)
    return deleted


def _delete_part(root: Path) -> None:
    """Delete what a killed build has left of a tree, unless its mmdebstrap goes on."""
    with contextlib.ExitStack() as stack:
        place = root.parent / mmdebstrap.LOCK
        try:
            if place.exists():
                lock = stack.enter_context(place.open())
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(root, ignore_errors=True)


def _in_use(home: Path) -> set[Path]:
    """The root filesystems of the AMIs and instances of all labs, and those imported last."""
    used = {link.resolve() for link in home.iterdir() if link.is_symlink()}
    for image in home.parent.glob("lab*/images/*/image.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            used.add(Path(json.loads(image.read_text())["base"]))
    for base in home.parent.glob(f"lab*/instances/*/{disks.BASE}"):
        with contextlib.suppress(OSError):
            used.add(Path(base.read_text()))
    return used


def _requested(root: Path) -> float:
    """Return the time of the last request, or else of its creation."""
    with contextlib.suppress(FileNotFoundError):
        return _stamp(root).stat().st_mtime
    return root.stat().st_ctime


def _stamp(root: Path) -> Path:
    return root.parent / ".used" / root.name
