"""The parser ships to machines with Python 3.7 to 3.13: each of them found here runs its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).with_name("test_xid_core.py")
VERSIONS = [f"3.{minor}" for minor in range(7, 14)]


def interpreter(version: str) -> str | None:
    """An interpreter of that version: from pyenv, or from PATH."""
    roots = [Path(os.environ.get("PYENV_ROOT", "/root/.pyenv")) / "versions", Path("/opt/python")]
    for root in roots:
        for place in sorted(root.glob(f"{version}.*/bin/python{version}")):
            return str(place)
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        return None  # a pyenv shim without that version behind it
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parsers_tests_pass_on_python(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    done = subprocess.run([python, "-B", str(CORE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Ran 0 tests" not in done.stderr
