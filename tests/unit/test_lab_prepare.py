"""What the lab makes before a bake, in parallel with the root filesystem."""

from __future__ import annotations

import hashlib
import io
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln.base.errors import KilnError
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.matrix import load
from lab import target as lab_target
from lab.base import origin
from lab.daemon import control
from lab.rootfs import bases, of_guest, real_bases
from lab.target import LabTarget
from lab.vendors import mirror, recipe_cache
from lab.vendors.kinds import REAL, STAND_INS
from lab.vendors.mirror import repos


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


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabTarget:
    """A running lab whose root filesystems are ready at once."""
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path))
    monkeypatch.setattr(lab_target, "_NEEDS_GIB", 0)
    own = {"started_from": origin.started_from()}
    monkeypatch.setattr(control, "up", lambda kind_of_vendors: own)
    monkeypatch.setattr(bases, "ensure", lambda *_, progress=None: tmp_path)
    monkeypatch.setattr(lab_target.host, "can_run", lambda: None)
    monkeypatch.setattr(lab_target.host, "probe", lambda lab: None)
    monkeypatch.setattr(lab_target.needs, "ensure", lambda *groups, **more: None)
    return LabTarget("a test")


def prepared(target: LabTarget, recipe: Recipe) -> list[str]:
    """What the preparation of the target for a recipe says."""
    out = io.StringIO()
    target.hooks.prepare([recipe], Progress(out), install=False, own_kernel=False)
    return [line for line in out.getvalue().splitlines() if not line.startswith("ok ")]


def test_emulator_of_the_ami_is_installed(
    target: LabTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[str] = []
    image = SimpleNamespace(id="ami-0fade000", architecture="arm64")
    monkeypatch.setattr(lab_target.images, "load", lambda lab: [image])
    monkeypatch.setattr(lab_target.emulation, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(lab_target.needs, "ensure", lambda *groups, **more: wanted.extend(groups))
    more = {"install": False, "own_kernel": False}
    target.hooks.prepare([], Progress(io.StringIO()), **more, ami_id="ami-0fade000")
    assert wanted == ["lab", "emulate_arm64"]


def test_vendors_files_are_made_while_the_root_filesystem_is(
    target: LabTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits until the other has begun, so running them in sequence would never end."""
    both = threading.Barrier(2, timeout=120)
    monkeypatch.setattr(bases, "ensure", lambda *_, progress: both.wait())
    monkeypatch.setattr(lab_target, "_make_vendor_files", lambda recipes: both.wait())
    prepared(target, row("al2"))


def test_a_vendors_file_that_cannot_be_made_ends_the_preparation(
    target: LabTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(recipes: object) -> None:
        raise KilnError("the lab mirror has no such file")

    monkeypatch.setattr(lab_target, "_make_vendor_files", fail)
    with pytest.raises(KilnError, match="has no such file"):
        prepared(target, row("al2"))


def test_what_the_mirror_has_made_is_not_asked_for_again_until_it_is_gone_or_made_anew(
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


def test_a_bake_in_a_lab_of_other_code_expects_the_files_that_this_lab_serves(
    target: LabTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab in use is not started anew when its code or the matrix has changed."""
    monkeypatch.setattr(
        recipe_cache, "hashes", lambda recipe: {"its.rpm": "ours", "else.rpm": "ours"}
    )
    monkeypatch.setattr(control, "served_hashes", lambda urls: {"its.rpm": "the lab's"})
    monkeypatch.setattr(control, "up", lambda kind_of_vendors: {"started_from": "before"})
    recipe = row("al2")
    own = {"its.rpm": "ours", "else.rpm": "ours"}
    assert target.hooks.variables(recipe)["sha256"] == own
    monkeypatch.setattr(control, "status", lambda: {"started_from": "before"})
    assert prepared(target, recipe) == [
        "the lab runs and is in use; it was started from another checkout: a checkout that it does "
        "not name (./invoke lab.down ends it)"
    ]
    assert target.hooks.variables(recipe)["sha256"] == {**own, "its.rpm": "the lab's"}


def test_a_failure_in_a_lab_of_other_code_says_that_the_lab_may_lack_what_the_row_needs(
    target: LabTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = row("al2")
    monkeypatch.setattr(control, "status", lambda: {"started_from": origin.started_from()})
    assert target.hooks.about_failure((), recipe) == ()
    monkeypatch.setattr(control, "status", lambda: {"started_from": "before"})
    (hint,) = target.hooks.about_failure((), recipe)
    assert hint.startswith("the lab may not have what the row needs: it was started from another")
    assert hint.endswith("; ./invoke lab.down ends it (its AMIs stay), then build again")


def test_a_lab_whose_code_was_edited_has_a_new_process_find_and_make_its_root_filesystems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make them by its old code, and name them after the new one."""
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path))
    imported = tmp_path / "imported"
    imported.mkdir()
    link = bases.imported_link("debian12", "x86_64")
    link.parent.mkdir(parents=True)
    link.symlink_to(imported)
    find = of_guest.finder(STAND_INS, threading.Lock())
    monkeypatch.setattr(bases, "ensure", lambda *_: tmp_path / "by this process")
    assert find("debian12", "x86_64") == tmp_path / "by this process"
    monkeypatch.setattr(origin, "started_from", lambda: "edited")
    assert find("debian12", "x86_64") == imported
    with pytest.raises(KilnError, match="nosuch"):
        find("nosuch", "x86_64")


def test_a_lab_with_the_real_vendors_says_too_that_its_code_was_edited(
    target: LabTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_target, "refuse_silent", lambda recipes: None)
    monkeypatch.setattr(real_bases, "ensure", lambda recipe, say: None)
    monkeypatch.setattr(control, "up", lambda kind_of_vendors: {"started_from": "before"})
    (said,) = prepared(replace(target, vendors=REAL), row("debian12"))
    assert said.startswith("the lab runs and is in use; it was started")
