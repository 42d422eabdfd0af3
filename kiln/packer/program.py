"""The Packer program: finds it, and asks it what needs no build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import yaml_files
from kiln.base.errors import operation_failed
from kiln.base.paths import KNOWLEDGE

Version = tuple[int, int, int]
WHOLE_FOLDER = "."
FOLDER_1_6 = "packer-1.6"

# The values that `validate` uses for variables without a default.
EXAMPLE_VARIABLES: dict[str, Any] = {
    "source_ami": "ami-00000000000000000",
    "ssh_source_cidrs": ["192.0.2.1/32"],
}


@dataclass(frozen=True)
class Packer:
    """A usable Packer binary."""

    path: Path
    version: Version

    @property
    def has_plugins(self) -> bool:
        """Does it load builders as plugins (1.7 and newer), and read the whole folder?"""
        return self.version >= parse_version(packer_facts()["plugins_from"])

    @property
    def template(self) -> str:
        """The path that it reads, relative to an AMI's folder."""
        return WHOLE_FOLDER if self.has_plugins else FOLDER_1_6

    def __str__(self) -> str:
        return f"Packer {'.'.join(map(str, self.version))} ({self.path})"


@cache
def packer_facts() -> dict[str, Any]:
    """`kiln/facts/knowledge/packer.yaml`: versions and the plugin."""
    data: dict[str, Any] = yaml_files.read_plain(KNOWLEDGE / "packer.yaml")
    return data


def find_packer() -> Packer:
    """The first HashiCorp Packer on PATH, or the binary that `KILN_PACKER` names.

    Raises KilnError (exit status 1) if there is none, or if it is too old.
    """
    named = os.environ.get("KILN_PACKER")
    others = []
    for path in _candidates():
        version = _version_of(path)
        if version is None:
            others.append(path)
        elif version < parse_version(packer_facts()["minimum"]):
            raise operation_failed(
                f"Packer {'.'.join(map(str, version))} at {path} is too old",
                hint=f"AMI Kiln needs {packer_facts()['minimum']} or newer: {_how_to_install()}",
            )
        else:
            return Packer(path, version)
    if others:
        raise operation_failed(
            f"{', '.join(map(str, others))} is not HashiCorp's Packer"
            + (" (cracklib has a program of that name)" if not named else ""),
            hint=f"{_how_to_install()}, or set KILN_PACKER to its path",
        )
    raise operation_failed("there is no packer on PATH", hint=_how_to_install())


def command(
    packer: Packer,
    verb: str,
    *,
    variables: Mapping[str, Any] | None = None,
    var_files: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> list[str]:
    """The command line of `packer build` or `packer validate`, to be run in an AMI's folder.

    Lists, maps and booleans in `variables` are written in Packer's syntax.
    """
    argv = [str(packer.path), verb, *flags]
    argv += [f"-var-file={path}" for path in var_files]
    for name, value in (variables or {}).items():
        argv += ["-var", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return [*argv, packer.template]


def ask_packer(
    argv: Sequence[str], folder: Path | None = None, text: str = "", timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Packer command that builds nothing in `folder` (default: the current one).

    Raises OSError if it cannot be run, subprocess.TimeoutExpired after `timeout` seconds.
    """
    # Packer's wrapper process writes its log to TMPDIR, and only it removes it.
    with tempfile.TemporaryDirectory(prefix="kiln-packer-", dir="/tmp") as scratch:
        return subprocess.run(
            argv,
            cwd=folder,
            env=quiet({**os.environ, "TMPDIR": scratch}),
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )


def quiet(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment (default: the process's own) in which Packer's output can be parsed.

    No call to HashiCorp's version check, no colours.
    """
    variables = os.environ if environment is None else environment
    return {**variables, "CHECKPOINT_DISABLE": "1", "NO_COLOR": "1"}


def _candidates() -> list[Path]:
    named = os.environ.get("KILN_PACKER")
    # Packer runs in the folder of its HCL.
    return [Path(named).absolute()] if named else _on_path("packer")


def _on_path(name: str) -> list[Path]:
    programs: dict[Path, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = shutil.which(name, path=folder or os.curdir)
        if path:
            programs.setdefault(Path(path).resolve(), Path(path))
    return list(programs.values())


def _version_of(path: Path) -> Version | None:
    """The version of HashiCorp's Packer; None if the binary is something else."""
    try:
        done = ask_packer([str(path), "version"], timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Packer v(\d+\.\d+\.\d+)", done.stdout, re.MULTILINE)
    return parse_version(match[1]) if match else None


def parse_version(text: str) -> Version:
    """`1.15.1` as numbers that can be compared."""
    major, minor, patch = (int(part) for part in text.split("."))
    return major, minor, patch


def _how_to_install() -> str:
    return "apt-get install packer, or https://developer.hashicorp.com/packer/install"
