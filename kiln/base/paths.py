"""The folders and files of a checkout."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KNOWLEDGE = ROOT / "kiln" / "facts" / "knowledge"
TEMPLATES = ROOT / "templates"
PROVISIONERS = ROOT / "provisioners"
RUNTIME = ROOT / "runtime"
AMI_TESTS = ROOT / "tests" / "ami"


def matrix_file() -> Path:
    """`amis.yaml`, or the file that `KILN_MATRIX` names (tests and forks use another one)."""
    return Path(os.environ.get("KILN_MATRIX", ROOT / "amis.yaml")).absolute()


def lock_file() -> Path:
    """`amis.lock.yaml`, or the file that `KILN_LOCK` names: the lock of another matrix."""
    return Path(os.environ.get("KILN_LOCK", ROOT / "amis.lock.yaml")).absolute()


def packer_dir() -> Path:
    """Where rendered HCL goes; `KILN_PACKER_DIR` moves it."""
    return Path(os.environ.get("KILN_PACKER_DIR", ROOT / "packer")).absolute()


def build_dir() -> Path:
    """Where runs leave their logs, reports and records; `KILN_BUILD_DIR` moves it."""
    return Path(os.environ.get("KILN_BUILD_DIR", ROOT / "build")).absolute()


def is_compiled(path: Path) -> bool:
    """Whether Python made this file: any process may leave one beside a source at any time."""
    return "__pycache__" in path.parts or path.suffix == ".pyc"


def near(path: Path) -> Path:
    """The path relative to the current folder, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
