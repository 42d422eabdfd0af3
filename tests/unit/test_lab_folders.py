"""Folders that count as complete once in their place: trees, bases, package repositories."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from lab import folders


def test_a_folder_is_in_its_place_only_after_its_files_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, place = tmp_path / "making", tmp_path / "place"
    made.mkdir()
    seen: list[tuple[tuple[str, ...], bool]] = []
    monkeypatch.setattr(folders, "run", lambda *words: seen.append((words, place.exists())))
    folders.put(made, place)
    assert seen == [(("sync", "--file-system", str(made)), False)]
    assert (place.is_dir(), made.exists()) == (True, False)


def test_this_machines_sync_takes_a_file_system(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    folders.put(tmp_path / "made", tmp_path / "place")
    assert (tmp_path / "place").is_dir()


@pytest.mark.parametrize("room", ["rootfs", "mirror"])
def test_no_folder_that_was_made_is_renamed_otherwise(room: str) -> None:
    renamed = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "lab" / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "rename"
        and getattr(node.value, "id", "") == "making"
    ]
    assert renamed == []
