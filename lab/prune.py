"""Root filesystems that nothing stands on any more, taken away when a newer one is made."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path

from lab import disks

# A build that has asked for a base has this long, in seconds, to launch something from it.
GRACE = 3600
_MAKING = (".making-", ".pruning-")


def use(*roots: Path) -> None:
    """Note that somebody has asked for these just now."""
    for root in roots:
        stamp = _stamp(root)
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()


def prune(home: Path, now: float | None = None) -> list[str]:
    """Delete what is neither under an AMI or an instance of any lab nor was asked for lately.

    `home` is the folder of the bases; the caller holds its lock. The names of what went.
    """
    latest = (now or time.time()) - GRACE
    standing = _in_use(home)
    gone = []
    for root in sorted(home.iterdir()):
        if root.is_symlink() or not root.is_dir() or root.name == _stamp(root).parent.name:
            continue
        if root.name.startswith(_MAKING):
            shutil.rmtree(root, ignore_errors=True)
        elif not root.name.startswith(".") and root not in standing and _asked(root) < latest:
            # It is gone as a whole before it is gone in part.
            doomed = root.rename(root.with_name(f".pruning-{root.name}"))
            shutil.rmtree(doomed, ignore_errors=True)
            _stamp(root).unlink(missing_ok=True)
            gone.append(root.name)
    return gone


def _in_use(home: Path) -> set[Path]:
    """What AMIs and instances of all labs stand on, and what was imported last."""
    found = {link.resolve() for link in home.iterdir() if link.is_symlink()}
    for image in home.parent.glob("lab*/images/*/image.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found.add(Path(json.loads(image.read_text())["base"]))
    for base in home.parent.glob(f"lab*/instances/*/{disks.BASE}"):
        with contextlib.suppress(OSError):
            found.add(Path(base.read_text()))
    return found


def _asked(root: Path) -> float:
    """When it was last asked for; when it was made, where nobody has noted that."""
    with contextlib.suppress(FileNotFoundError):
        return _stamp(root).stat().st_mtime
    return root.stat().st_ctime


def _stamp(root: Path) -> Path:
    return root.parent / ".used" / root.name
