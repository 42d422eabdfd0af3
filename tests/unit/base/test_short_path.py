"""Folders with a short path: usable by any program, and removed also after a kill."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from kiln.base.paths import short_path


def test_short_path_leads_to_a_folder_and_goes(tmp_path: Path) -> None:
    folder = tmp_path / 'é "$HOME" {{x}} [1]'
    folder.mkdir()
    with short_path("test-short-path", folder) as short:
        (short / "run" / "x").write_text("x")
        assert (folder / "x").read_text() == "x"
        assert re.fullmatch(r"/tmp/kiln-[\w-]+", str(short))
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert not short.exists()
