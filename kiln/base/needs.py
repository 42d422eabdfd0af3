"""The programs that a task needs on this machine: checked, and installed if missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kiln.base import processes, yaml_files
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
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*path, *_SBIN]))
    wanted = missing(*groups)
    if not wanted:
        return
    packages = sorted({need.package for need in wanted})
    reasons = "\n".join(f"  {need.package}: {need.why}" for need in wanted)
    line = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    absent = [program for program in (*sudo, "apt-get") if not shutil.which(program)]
    if absent or not install:
        obstacle = f"{absent[0]} is not available" if install else "nothing may be installed"
        raise operation_failed(
            f"missing on this machine, and {obstacle}:\n{reasons}",
            hint=f"run: sudo sh -c '{line}'",
        )
    say(f"installing with apt-get:\n{reasons}")
    install_them = ["install", "-y", "--no-install-recommends", *packages]
    # apt-get update is the slow half, and only outdated or missing package lists need it.
    if _apt_get(sudo, install_them).returncode == 0:
        return
    for words in (["update"], install_them):
        done = _apt_get(sudo, words)
        if done.returncode:
            output = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise operation_failed(
                f"apt-get {' '.join(words)} failed: {output[-1] if output else done.returncode}",
                hint=f"repair apt, or install by hand: {line}",
            )


def _apt_get(sudo: Sequence[str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return processes.run([*sudo, "apt-get", "-q", *words], env=environment)
