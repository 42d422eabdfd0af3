"""What stand-ins and root filesystems are made of: the checkout's own files, and nothing that
Python leaves beside them when a test imports a stand-in's program."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.rootfs import bases
from lab.vendors.packages import model

NOT_TEXT = b"\xa7\r\r\n"


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """A tree of files, after Python has imported one of them."""
    top = tmp_path / "payloads" / "tool"
    (top / "usr/bin/__pycache__").mkdir(parents=True)
    (top / "usr/bin/tool").write_text("#!/usr/bin/python3\n")
    (top / "usr/bin/__pycache__/tool.cpython-311.pyc").write_bytes(NOT_TEXT)
    (top / "usr/bin/__pycache__/other.cpython-311.pyc.140234").write_bytes(NOT_TEXT)
    (top / "usr/bin/toolc.pyc").write_bytes(NOT_TEXT)
    return top


def test_a_package_is_made_without_what_python_compiled_beside_its_files(
    imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "HERE", imported.parents[1])
    assert list(model.tree("tool", {})) == ["/usr/bin/tool"]


def test_a_root_filesystem_is_made_without_what_python_compiled_beside_its_files(
    imported: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    bases.copy_tree(imported, root, {})
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["tool"]
