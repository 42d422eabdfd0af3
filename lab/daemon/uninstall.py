"""Removes every lab from this machine, and says what of AMI Kiln is left on it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kiln.base.paths import ROOT, build_dir
from lab.base.settings import Lab, current
from lab.daemon import control, users
from lab.rootfs import tree

# As `kiln.base.needs` and setup/venv.sh call apt; kept monthly, for a year.
_APT_HISTORY = Path("/var/log/apt")
_OURS = re.compile(r"^Commandline: apt-get -q+y? install -y --no-install-recommends (.+)", re.M)
_DPKG = Path("/var/lib/dpkg/info")


def packages_from_apt(history: Path = _APT_HISTORY, dpkg: Path = _DPKG) -> list[str]:
    """The packages that AMI Kiln's tasks have asked apt for and that are still there, by name."""
    names: set[str] = set()
    for path in history.glob("history.log*"):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for packages in _OURS.findall(text.decode(errors="replace")):
            names |= set(packages.split())
    return sorted(name for name in names if any(dpkg.glob(f"{name}[.:]*list")))


def remove_all_labs(*, force: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Take down and delete every lab below the folder of labs, and what they share; returns the
    removed parts, and those that are left.

    `force` first ends the builds that use one, and `say` gets their names. Raises KilnError (exit
    status 1) while a build uses one.
    """
    root = current().root
    removed: list[str] = []
    labs = [Lab(number, root) for number in _numbers(root)] or [current()]
    if not force:  # before anything is removed
        for lab in labs:
            users.refuse_if_used(lab)
    for lab in labs[1:]:
        removed += control.clean(lab, force=force, say=say)
    removed += control.clean(labs[0], bases=True, force=force, say=say)
    if tree.delete(root):
        removed.append(f"folder {root}")
    folders = [str(path) for path in (ROOT / ".venv", build_dir()) if path.exists()]
    return {"removed": removed, "left": {"packages": packages_from_apt(), "folders": folders}}


def text(done: dict[str, Any]) -> str:
    """List the removed parts, and the commands that remove the rest."""
    lines = [f"removed {item}" for item in done["removed"]]
    if packages := " ".join(done["left"]["packages"]):
        lines.append("installed by AMI Kiln, and left, since other programs may use them now:")
        lines.append(f"  {packages}")
        lines.append(f"  to remove them: apt-get purge --autoremove {packages}")
    lines += [f"left: {folder}, which goes with the checkout" for folder in done["left"]["folders"]]
    lines.append("AMIs, snapshots and parameters in AWS are not touched")
    return "\n".join(lines)


def _numbers(root: Path) -> list[int]:
    """The indexes of the labs that have a folder."""
    matches = (re.fullmatch(r"lab([0-9]{1,3})", path.name) for path in root.glob("lab*"))
    return sorted(int(match[1]) for match in matches if match)
