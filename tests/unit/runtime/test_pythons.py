"""What ships runs on Python 3.7 to 3.13 and uses public modules only.

Each version that this machine has imports all of it and runs the tests of the Xid monitor.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import surroundings

CORE = Path(__file__).with_name("test_xid_core.py")
REPOSITORY = Path(__file__).parents[2]
LIBRARY = REPOSITORY / "runtime/opt/kiln/lib"
SHIPPED = sorted(
    [
        *LIBRARY.glob("gpu_*/*.py"),
        *(REPOSITORY / "provisioners/lib").glob("*.py"),
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
VERSIONS = [f"3.{minor}" for minor in range(7, 14)]


def interpreter(version: str) -> str | None:
    """An interpreter of that version: from pyenv, or from PATH."""
    if found := surroundings.pythons().get(version):
        return found
    result = shutil.which(f"python{version}")
    if result and subprocess.run([result, "-c", ""], capture_output=True, check=False).returncode:
        return None  # a pyenv shim without that version behind it
    return result


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parsers_tests_pass_on_python(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    done = subprocess.run([python, "-B", str(CORE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Ran 0 tests" not in done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shipped_module_imports_on_python(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    done = subprocess.run(
        [python, "-ISB", "-c", IMPORT, str(LIBRARY), *map(str, SHIPPED)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_shipped_code_uses_public_modules_only(path: Path) -> None:
    """A private module of CPython (`_json`, `_socket`) may change in any release."""
    imported = [
        name.partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 7)))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    private = [name for name in imported if name.startswith("_") and name != "__future__"]
    assert private == []
