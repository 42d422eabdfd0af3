"""The folders and files of a checkout, and the packages of `runtime/`, which kiln runs too."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
KNOWLEDGE = ROOT / "kiln" / "facts" / "knowledge"
TEMPLATES = ROOT / "templates"
PROVISIONERS = ROOT / "provisioners"
RUNTIME = ROOT / "runtime"
AMI_TESTS = ROOT / "tests" / "ami"


def version() -> str:
    """Return AMI Kiln's version."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return str(re.findall('^version = "(.+)"', text, re.MULTILINE)[0])


def matrix_file() -> Path:
    """`amis.yaml`, or the file that `KILN_MATRIX` names (tests and forks use another one)."""
    return Path(os.environ.get("KILN_MATRIX", ROOT / "amis.yaml")).absolute()


def lock_file() -> Path:
    """`amis.lock.yaml`, or the file that `KILN_LOCK` names: the lock of another matrix."""
    return Path(os.environ.get("KILN_LOCK", ROOT / "amis.lock.yaml")).absolute()


def packer_dir() -> Path:
    """Return the folder of rendered HCL; `KILN_PACKER_DIR` moves it."""
    return Path(os.environ.get("KILN_PACKER_DIR", ROOT / "packer")).absolute()


def build_dir() -> Path:
    """Return the folder of runs' logs, reports and records; `KILN_BUILD_DIR` moves it."""
    return Path(os.environ.get("KILN_BUILD_DIR", ROOT / "build")).absolute()


def is_compiled(path: Path) -> bool:
    """Return True if Python made this file: any process may leave one beside a source at any
    time."""
    return "__pycache__" in path.parts or path.suffix == ".pyc"


def files_below(top: Path) -> dict[str, Path]:
    """The files in a folder that Python has not compiled: path in it → file, sorted."""
    return {
        path.relative_to(top).as_posix(): path
        for path in sorted(top.rglob("*"))
        if path.is_file() and not is_compiled(path)
    }


def near(path: Path) -> Path:
    """The path relative to the current folder, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# Not TMPDIR: a socket's path must be short.
_SHORT = Path("/tmp")  # noqa: S108 - each folder in it is 0700


@contextlib.contextmanager
def short_path(name: str, folder: Path) -> Iterator[Path]:
    """The folder `/tmp/kiln-NAME`; `run` in it leads to `folder`.

    ssh, Packer and pytest each read some characters of a path as their own syntax (`"`, `%`, `{{`,
    `$`, `[`) or cannot read what is not ASCII, and a socket's path has at most 107 bytes.
    """
    remove_short_path(name)
    short = _of(name)
    short.mkdir(mode=0o700)
    try:
        (short / "run").symlink_to(folder.absolute())
        yield short
    finally:
        # ssh's master may be removing its socket at the same moment.
        shutil.rmtree(short, ignore_errors=True)


def remove_short_path(name: str) -> None:
    """Remove the short path of this name, however little of it a killed process has left."""
    shutil.rmtree(_of(name), ignore_errors=True)


def _of(name: str) -> Path:
    return _SHORT / f"kiln-{name}"


LIBRARY = RUNTIME / "opt" / "kiln" / "lib"


def runtime_module(name: str) -> ModuleType:
    """A package or module of `runtime/opt/kiln/lib`, such as `gpu_mig.placement`.

    sys.path does not change. Raises ImportError if there is no package of that name.
    """
    for package in ("gpu_common", name.split(".", maxsplit=1)[0]):
        if package not in sys.modules:
            _load(package)
    return importlib.import_module(name)


def _load(package: str) -> None:
    init = LIBRARY / package / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        package, init, submodule_search_locations=[str(init.parent)]
    )
    if not init.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"runtime/opt/kiln/lib has no package {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
