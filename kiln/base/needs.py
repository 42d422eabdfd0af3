"""The programs that a task needs on this machine: checked, and installed if missing."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.base import yaml_files
from kiln.base.errors import operation_failed
from kiln.base.paths import KNOWLEDGE

# Folders of system tools that a user's PATH may lack.
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Need:
    """A command, the package that contains it, and what it is used for."""

    command: str
    package: str
    why: str


def missing(*groups: str) -> list[Need]:
    """The commands of these groups that are missing: `kiln/facts/knowledge/host-packages.yaml`."""
    data = yaml_files.read_plain(KNOWLEDGE / "host-packages.yaml")
    needs = [Need(**entry) for group in groups for entry in data[group]]
    return [need for need in needs if not shutil.which(need.command)]


def ensure(*groups: str, install: bool, say: Callable[[str], None]) -> None:
    """Install missing packages with apt-get, after telling `say` which and why.

    The package lists are updated only if apt-get cannot install with those it has. Where nothing
    may or can be installed, the error has the command to run.
    """
    _with_sbin()
    wanted = missing(*groups)
    if not wanted:
        return
    packages = sorted({need.package for need in wanted})
    reasons = "\n".join(f"  {need.package}: {need.why}" for need in wanted)
    line = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
    if not install or not shutil.which("apt-get"):
        obstacle = "--no-install was given" if not install else "apt-get is not available"
        raise operation_failed(
            f"missing on this machine, and {obstacle}:\n{reasons}",
            hint=f"run: sudo sh -c '{line}'",
        )
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    if sudo and not shutil.which("sudo"):
        raise operation_failed(
            f"missing on this machine:\n{reasons}", hint=f"run as root (there is no sudo): {line}"
        )
    say(f"installing with apt-get:\n{reasons}")
    install_them = ["install", "-y", "--no-install-recommends", *packages]
    # apt-get update is the slow half, and only outdated or missing package lists need it.
    if _apt_get(sudo, install_them).returncode == 0:
        return
    for words in (["update"], install_them):
        done = _apt_get(sudo, words)
        if done.returncode:
            output = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise operation_failed(
                f"apt-get {' '.join(words)} failed: {output[-1] if output else done.returncode}",
                hint=f"repair apt, or install by hand: {line}",
            )


def _apt_get(sudo: Sequence[str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*sudo, "apt-get", "-q", *words],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def free_disk(folder: Path, gib: float) -> None:
    """Require that `gib` GiB are free on the disk of `folder`."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    if free < gib:
        raise operation_failed(
            f"the disk is full: {free:.1f} GiB are free at {folder}, a lab build needs {gib:g}",
            hint="free some space (`./invoke lab.clean` deletes the lab's AMIs), or point "
            "KILN_LAB_STATE at another disk",
        )


def _with_sbin() -> None:
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*path, *(p for p in _SBIN if p not in path)])


HISTORY = Path("/var/log/apt")
# The words of `needs.ensure`, and those of setup/venv.sh.
_OURS = re.compile(r"apt-get -q+y? install -y --no-install-recommends (?P<names>.+)")
_VENV = "python3-venv"


def packages_from_apt(history: Path = HISTORY) -> list[str]:
    """The packages that AMI Kiln's tasks have asked apt for and that are still there, by name.

    Empty where there is no history: apt rotates it monthly and keeps a year.
    """
    groups = yaml_files.read_plain(KNOWLEDGE / "host-packages.yaml")
    entries = (entry for name, group in groups.items() if name != "source" for entry in group)
    needed_packages = {entry["package"] for entry in entries} | {_VENV}
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
