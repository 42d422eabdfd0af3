"""Which packages `needs.ensure` has installed on this machine, as apt's own history tells."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

from kiln.base import needs

HISTORY = Path("/var/log/apt")
# The words of `needs.ensure`, and those of setup/venv.sh.
_OURS = re.compile(r"apt-get -q+y? install -y --no-install-recommends (?P<names>.+)")
_VENV = "python3-venv"


def packages_from_apt(history: Path = HISTORY) -> list[str]:
    """The packages that AMI Kiln's tasks have asked apt for and that are still there, by name.

    Empty where there is no history: apt rotates it monthly and keeps a year.
    """
    needed_packages = {need.package for need in needs.all_needs()} | {_VENV}
    names: set[str] = set()
    for path in sorted(history.glob("history.log*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in text.decode(errors="replace").splitlines():
            match = _OURS.search(line) if line.startswith("Commandline: ") else None
            names |= set(match["names"].split()) if match else set()
    return sorted(name for name in names & needed_packages if _is_there(name))


def _is_there(package: str) -> bool:
    """Is it still installed? Where dpkg cannot be asked, yes."""
    info = Path("/var/lib/dpkg/info")
    return (
        not shutil.which("dpkg")
        or any(info.glob(f"{package}.list"))
        or any(info.glob(f"{package}:*.list"))
    )
