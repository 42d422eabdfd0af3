"""`./invoke generate` writes everything generated that is committed, and can only compare it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from devel import generate
from kiln.base.paths import ROOT
from kiln.matrix import load

TEXTS = generate.TEXTS


def one_row() -> str:
    """The matrix with the first of its rows only."""
    recipe = load.load_recipes()[0]
    matrix = yaml.safe_load((ROOT / "amis.yaml").read_text())
    matrix["amis"] = [{"distro": recipe.distro.id, "stack": recipe.stack}]
    return yaml.safe_dump(matrix, sort_keys=False)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One generated file, made in a folder of its own from a text that a test may change, and one
    row of the matrix."""
    (tmp_path / "amis.yaml").write_text(one_row())
    monkeypatch.setattr(generate, "_MATRIX", tmp_path / "amis.yaml")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    monkeypatch.setattr(generate, "TEXTS", {tmp_path / "a.json": (lambda: "new\n", "kiln/x.yaml")})
    generate.write()
    return tmp_path / "a.json"


def test_a_stale_file_is_named_with_what_it_is_made_from(elsewhere: Path) -> None:
    elsewhere.write_text("old\n")
    assert generate.stale() == ["a.json: differs from kiln/x.yaml"]
    assert elsewhere.read_text() == "old\n", "comparing writes nothing"


def test_a_missing_file_is_stale_and_written(elsewhere: Path) -> None:
    elsewhere.unlink()
    assert generate.stale()
    assert generate.write() == ["a.json"]
    assert elsewhere.read_text() == "new\n"
    assert generate.stale() == []


def test_the_exit_status_says_whether_something_is_stale(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.generate(check_only=True) == 0
    elsewhere.write_text("old\n")
    assert generate.generate(check_only=True) == 1
    assert "run: ./invoke generate" in capsys.readouterr().out
    assert generate.generate(check_only=False) == 0
    assert generate.generate(check_only=True) == 0


def test_every_file_that_says_it_is_made_by_generate_is_on_the_list() -> None:
    marked = [
        path
        for folder in ("docs", "runtime")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".json"}
        if "by `./invoke generate`. Do not edit" in path.read_text(encoding="utf-8")
    ]
    assert len(marked) == 2
    assert set(marked) <= set(TEXTS)


def test_another_matrix_of_the_user_changes_nothing_that_is_committed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would delete the folder of each row that the user's matrix lacks."""
    (tmp_path / "amis.yaml").write_text(one_row())
    monkeypatch.setenv("KILN_MATRIX", str(tmp_path / "amis.yaml"))
    assert generate.stale() == []
