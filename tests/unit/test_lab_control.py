"""When a running lab counts as that of another checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import control


def test_only_its_own_files_tell_a_lab_from_another_not_what_python_is_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ROOT", tmp_path)
    compiled = tmp_path / "lab" / "__pycache__"
    compiled.mkdir(parents=True)
    (tmp_path / "lab" / "guest.py").write_text("one = 1\n")
    before = control.started_from()
    (compiled / "guest.cpython-311.pyc.140234").write_bytes(b"half of it")
    assert control.started_from() == before
    (tmp_path / "lab" / "guest.py").write_text("one = 2\n")
    assert control.started_from() != before
