"""What ships imports, and the Xid monitor's tests pass, on the oldest and the newest Python."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kiln.base.paths import LIBRARY, ROOT
from tests import surroundings

CORE = ROOT / "tests/unit/xid/test_monitor.py"
SHIPPED = sorted(
    [
        *LIBRARY.glob("gpu_*/*.py"),
        *(ROOT / "provisioners/lib").glob("*.py"),
    ]
)
# Imports each file given, without running it as a program.
IMPORT = """
import importlib, importlib.machinery, importlib.util, os, sys
library, *files = sys.argv[1:]
sys.path.insert(0, library)
for file in files:
    folder, name = os.path.split(file)
    package = os.path.basename(folder)
    if package.startswith("gpu_"):
        importlib.import_module(package + "." + name[:-3])
        continue
    loader = importlib.machinery.SourceFileLoader("script", file)
    spec = importlib.util.spec_from_loader("script", loader)
    loader.exec_module(importlib.util.module_from_spec(spec))
"""
# All between them run what these two run.
VERSIONS = ["3.7", "3.13"]

pytestmark = pytest.mark.slow


@pytest.fixture
def python(version: str) -> str:
    """An interpreter of that version: from pyenv, or from PATH."""
    found = surroundings.pythons().get(version) or shutil.which(f"python{version}")
    # A pyenv shim may have no such version behind it.
    if not found or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} on this machine")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_monitors_tests_pass_on_python(python: str) -> None:
    done = subprocess.run([python, "-B", str(CORE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Ran 0 tests" not in done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shipped_module_imports_on_python(python: str) -> None:
    done = subprocess.run(
        [python, "-ISB", "-c", IMPORT, str(LIBRARY), *map(str, SHIPPED)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
