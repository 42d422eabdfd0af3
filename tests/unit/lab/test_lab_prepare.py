"""What the lab's mirror makes before a bake."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.matrix import load
from lab.vendors import mirror, recipe_cache

pytestmark = pytest.mark.slow


def test_mirror_hashes_are_cached_until_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "state"))
    file, repository, asked = tmp_path / "file", tmp_path / "repository", []
    file.write_text("as it is")
    repository.mkdir()
    monkeypatch.setattr(mirror, "find", lambda url, state=None: file)
    monkeypatch.setattr(mirror, "key_fingerprints", dict)
    monkeypatch.setattr(mirror, "prepare", lambda recipe: asked.append(recipe) or [repository])
    recipe = load.load_recipes()[0]
    first = recipe_cache.hashes(recipe)
    assert first
    assert set(first.values()) == {hashlib.sha256(b"as it is").hexdigest()}
    assert recipe_cache.hashes(recipe) == first
    assert len(asked) == 1
    file.write_text("made anew")
    assert set(recipe_cache.hashes(recipe).values()) == {hashlib.sha256(b"made anew").hexdigest()}
    repository.rmdir()
    recipe_cache.hashes(recipe)
    assert len(asked) == 3
    file.unlink()
    with pytest.raises(KilnError, match="the lab mirror has no"):
        recipe_cache.hashes(recipe)
