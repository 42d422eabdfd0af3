"""Rendered HCL: complete, reproducible, noticed when stale."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kiln import components
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.facts import packages
from kiln.matrix import load
from kiln.packer import render
from kiln.packer.render import recipe_digest, stale_files, write_all, write_inputs
from kiln.packer.validate import read_hcl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    return load.load_recipes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `packer/` of its own."""
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    return tmp_path / "packer"


def shared(name: str) -> str:
    """A file of packer/shared."""
    return render.shared_files(components.everything())[name]


@cache
def steps() -> list[tuple[str, dict[str, Any]]]:
    """Type and attributes of every provisioner, in order."""
    (build,) = read_hcl(shared("build.pkr.hcl"))["build"]
    return [(kind, step[kind]) for step in build["provisioner"] for kind in step]


def test_ami_and_snapshots_are_tagged() -> None:
    build, source = read_hcl(shared("build.pkr.hcl")), read_hcl(shared("source.pkr.hcl"))
    assert set(build["locals"][0]["tags"]) >= set(render.BAKE_TAGS)
    for name in ("tags", "snapshot_tags", "run_tags", "run_volume_tags"):
        assert "local.tags" in source["source"][0]["amazon-ebs"]["gpu"][name]


def test_digest_has_hashes_of_own_downloads_only(
    recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "locked_hashes", dict)
    before = recipe_digest(recipes[0])
    monkeypatch.setattr(packages, "locked_hashes", lambda: {"https://other": "cd34"})
    assert recipe_digest(recipes[0]) == before
    urls = [d.url for c in components.steps(recipes[0]) for d in c.downloads]
    monkeypatch.setattr(packages, "locked_hashes", lambda: {urls[0]: "ab12"})
    assert recipe_digest(recipes[0]) != before


def test_every_uploaded_file_is_in_the_digest(recipes: list[Recipe]) -> None:
    for recipe in recipes:
        digested = render.render(recipe).inputs
        sent = uploaded(recipe)
        assert {path.parts[0] for path in sent} >= {"packer", "provisioners", "runtime"}
        assert [path for path in sent if path.as_posix() not in digested] == []


def uploaded(recipe: Recipe) -> list[Path]:
    """The files in the checkout that Packer sends to the build instance, as the HCL names them."""
    named = []
    for kind, attributes in steps():
        if kind == "file":
            named += attributes["sources"]
        elif Path(attributes.get("script", "")).stem in recipe.components:
            named.append(attributes["script"])
    files = ROOT / "packer" / recipe.line / "files"
    places = [
        Path(name.replace("${local.checkout}", str(ROOT)).replace("${local.files}", str(files)))
        for name in named
    ]
    every = [file for path in places for file in [path, *path.rglob("*")] if file.is_file()]
    return [f.resolve().relative_to(ROOT) for f in every if "__pycache__" not in f.parts]


def test_compiled_python_is_not_baked(
    recipes: list[Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("runtime/opt/tool.py", "runtime/opt/__pycache__/tool.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.setattr(render, "ROOT", tmp_path)
    assert list(render.uploaded_files(recipes[0].changed(components=()))) == ["runtime/opt/tool.py"]


def test_render_writes_what_is_stale_and_nothing_else(folder: Path, recipes: list[Recipe]) -> None:
    gone, kept = recipes[:2]
    written = write_all([gone, kept])
    assert written and all(line.startswith("wrote") for line in written)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert write_all([gone, kept]) == []
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    row = folder / kept.line
    (row / render.RECIPE).write_text("# by hand\n")
    (row / "plugins.pkr.hcl").unlink()
    (row / "files" / "old.json").write_text("{}")
    (folder / "shared" / "old.pkr.hcl").write_text("")
    stale = [line.split(":")[0] for line in stale_files([kept])]
    names = ("files/old.json", "plugins.pkr.hcl", render.RECIPE)
    assert {*stale} == {
        str(folder / gone.line),
        *(str(row / name) for name in names),
        str(folder / "shared/old.pkr.hcl"),
    }
    write_all([kept], whole=False)
    assert stale_files([kept], whole=False) == []
    assert [line.split(":")[0] for line in stale_files([kept])] == [str(folder / gone.line)]
    write_all([kept])
    assert stale_files([kept]) == []
    assert {path.name for path in folder.iterdir()} == {"shared", kept.line}


def test_link_in_the_place_of_a_file_is_not_followed(folder: Path, recipes: list[Recipe]) -> None:
    write_all(recipes[:1])
    (file,) = folder.glob("*/recipe.pkr.hcl")
    elsewhere = folder.parent / "mine.hcl"
    elsewhere.write_text("mine")
    file.unlink()
    file.symlink_to(elsewhere)
    write_all(recipes[:1])
    assert (elsewhere.read_text(), file.is_symlink()) == ("mine", False)


def test_files_of_the_user_stay(folder: Path, recipes: list[Recipe]) -> None:
    write_all(recipes[:2])
    notes = folder / recipes[0].line / "mine.auto.pkrvars.hcl"
    notes.write_text('region = "eu-west-1"\n')
    write_all(recipes[:2])
    write_all(recipes[1:2])
    assert notes.exists()


def test_digest_names_the_content(recipes: list[Recipe]) -> None:
    first = recipes[0]
    assert recipe_digest(first) == recipe_digest(first)
    assert len({recipe_digest(recipe) for recipe in recipes}) == len(recipes)
    assert recipe_digest(first.changed(nccl="2.12.12")) != recipe_digest(first)


def test_digest_has_the_content_of_a_baked_file(
    recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipe_digest(recipes[0])
    changed = ROOT / "provisioners" / "lib" / "kiln.sh"
    real = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: real(path) + (b"#" if path == changed else b"")
    )
    assert recipe_digest(recipes[0]) != before


def test_bake_reads_the_files_that_were_digested(
    recipes: list[Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = render.render(recipes[0])
    before = rendered.digest
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: real(path) + b"# edited")
    write_inputs(rendered, tmp_path)
    monkeypatch.undo()
    written = {
        path.relative_to(tmp_path).as_posix(): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert rendered.digest == before == rendered.recipe.digest(written)
    program = tmp_path / "runtime/usr/local/bin/gpu-mig"
    assert program.stat().st_mode & 0o111, "programs stay programs"
