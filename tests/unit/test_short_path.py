"""Folders with a short path: usable by any program, and removed also after a kill."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from kiln.base.short_path import remove_short_paths, short_path


def test_a_short_path_leads_to_the_run_and_is_gone_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / 'é "$HOME" {{x}} [1]'
    folder.mkdir()
    with short_path("test-short-path", folder) as short:
        (short / "run" / "x").write_text("x")
        assert (folder / "x").read_text() == "x"
        assert re.fullmatch(r"/tmp/kiln-[\w-]+", str(short))
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert not short.exists()
    assert (folder / "x").exists()


def test_the_short_path_of_a_killed_process_of_this_checkout_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    mine = os.getpid()
    own, living = (tmp_path / "build" / "row" / f"{name}-{mine}" for name in ("killed", "living"))
    other = tmp_path / "other" / "row" / f"other-{mine}"
    for folder in (own, living, other):
        folder.mkdir(parents=True)
    dies = """
import os, sys
from pathlib import Path
from kiln.base.short_path import short_path
opened = [short_path(Path(folder).name, Path(folder)) for folder in sys.argv[1:]]
for path in opened:
    path.__enter__()
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", dies, str(own), str(other)], cwd=ROOT, check=False)
    left, anothers = Path(f"/tmp/kiln-{own.name}"), Path(f"/tmp/kiln-{other.name}")
    assert left.exists()
    with short_path(living.name, living) as used:
        remove_short_paths()
        assert used.exists()
    assert not left.exists()
    assert anothers.exists()
    shutil.rmtree(anothers)
    assert own.exists()
