"""What the lab's mirror makes before a bake."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.matrix import load
from lab.vendors import mirror, recipe_cache
from lab.vendors.mirror import repos

pytestmark = pytest.mark.slow


def row(distro: str) -> Recipe:
    return next(
        recipe
        for recipe in load.load_recipes()
        if recipe.distro.id == distro and "container-toolkit" in recipe.components
    )


@pytest.mark.parametrize(
    ("distro", "names"),
    [
        ("al2", {"amazon-al2-core-x86_64", "cuda-rhel7-x86_64", "container-toolkit-rpm-x86_64"}),
        ("al2023", {"amazon-al2023-core-x86_64", "cuda-amzn2023-x86_64"}),
        ("ubuntu2204", {"ubuntu2204-x86_64", "cuda-ubuntu2204-x86_64"}),
        ("debian12", {"cuda-debian12-x86_64", "container-toolkit-deb-x86_64"}),
    ],
)
def test_the_repositories_that_a_bake_reads_are_built_before_it(
    distro: str, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: set[str] = set()
    monkeypatch.setattr(repos, "ensure", lambda repo, home, keyring: built.add(repo.name))
    monkeypatch.setattr(mirror.keys, "ensure", lambda home: None)
    mirror.prepare(row(distro), tmp_path)
    assert names <= built


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
    recipe = row("al2")
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
